"""The paper's experiments, one command each, on any folder in the MVTec AD layout.

TABLE is one of

  table1     detection and segmentation of every class
  losses     the SVDD loss, SVDD' alone, with the position task, and with the synthetic
             defects of dense training, with intrinsic dimensions
  hierarchy  the flat encoder of K=64 against the hierarchical one
  scales     K=32, K=64, both multiplied and both added up, from the same fits
  lambda     a sweep of lambda
  dimension  a sweep of D, the length of a feature, with intrinsic dimensions
  random     a random encoder and raw patches against a trained encoder
  time       seconds to inspect an image
  baselines  IsolationForest, OneClassSVM, LocalOutlierFactor, Deep SVDD and an
             autoencoder on the same images, and PyOD's DeepSVDD where it is installed
  maps       a picture: of each class an abnormal image and its maps
  tsne       a picture: of each class the features that each loss leads to, by t-SNE,
             in colours of their direction from the centre and sizes of the distance

det and seg are areas under the ROC curve of images and of pixels, means over the seeds,
with the paper's figures beside them where it prints any: for classes of MVTec AD, found
by the last part of a category's path, or for the mean of its 15 classes. "undone" is
the fraction of fits whose training failed and was undone, as PatchSVDD does with a
warning: their figures are those of random or of early weights. "ID", an intrinsic
dimension, is empty where features nearly all coincide, and so is its mean. The paper's
0.48 s an image are of an RTX 2080 Ti and an i7-5930K, with an approximate search.

PatchSVDD trains in its own, dense way. --training paper trains and inspects as the
paper does, with lambda=1e-3 where nothing else is said; it takes 12,000 steps.

Figures are kept in --cache, one file for each fit and machine. A run that was
interrupted goes on where it stopped, and tables share their fits, but for the table of
times. Images are known by the names and sizes of their files. Whoever changes the code
of the package should begin with an empty folder.

With an RBF kernel the one-class SVM is the classic SVDD, which is why there is one of
them. A picture can be had of losses, lambda and dimension. maps and tsne are nothing
but pictures: with one seed, and with fits of their own that are not kept.

Example: python benchmarks/paper table1 --data DATA --categories mvtec/bottle
Example: python benchmarks/paper losses --data DATA --quick --picture losses.png
Example: python benchmarks/paper maps --data DATA --picture maps.png
"""
