"""
Losses and figures in TensorBoard
=================================

A callback of scikit-learn, 1.9 or later, that writes how training went into a log that
TensorBoard shows: losses, checks, the threshold and a figure. It works inside of a
pipeline or a search, too. Needs ``pip install tensorboard``.
"""

import tempfile

import matplotlib.pyplot as plt
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard import SummaryWriter

from skpatchsvdd import PatchSVDD
from skpatchsvdd.datasets import make_textures
from skpatchsvdd.plotting import LossCurveDisplay, ScoreHistogramDisplay

# %%
# The estimator is fitted when its task "fit" ends. Before that there is no bank to
# score with, and its parts say only how far it is, see :ref:`progress`.


class TensorBoardLog:
    """Logs a fitted PatchSVDD to a folder."""

    def __init__(self, folder, X, y):
        self.folder = folder
        self.X, self.y = X, y  # what to draw scores of

    def setup(self, estimator, context):
        """Nothing is to be done before a fit."""

    def teardown(self, estimator, context):
        """Nor after it."""

    def on_fit_task_begin(self, estimator, context):
        """Nor as a task begins."""

    def on_fit_task_end(self, estimator, context):
        """Write all, once the estimator is fitted."""
        if context.task_name != "fit" or not isinstance(estimator, PatchSVDD):
            return
        with SummaryWriter(self.folder) as log:
            for name, losses in estimator.loss_curve_.items():
                for step, loss in enumerate(losses, 1):
                    log.add_scalar(f"loss/{name}", loss, step)
            checks = zip(
                estimator.validation_steps_, estimator.validation_scores_, strict=True
            )
            for step, auroc in checks:
                log.add_scalar("validation AUROC", auroc, step)
            log.add_scalar("threshold", -estimator.offset_)
            scores = ScoreHistogramDisplay.from_estimator(estimator, self.X, self.y)
            log.add_figure("scores", scores.figure_)


# %%
# With MLflow the same callback calls ``mlflow.log_metric(name, value, step)`` and
# ``mlflow.log_figure(figure, "scores.png")`` instead.

train = make_textures(12, image_size=96, random_state=0).images
test = make_textures(8, image_size=96, anomaly_fraction=0.5, random_state=1)
folder = tempfile.mkdtemp()

est = PatchSVDD(max_iter=20, random_state=0)
est.set_callbacks(TensorBoardLog(folder, test.images, test.labels))
est.fit(train)

# %%
# ``tensorboard --logdir FOLDER`` shows it in a browser. What is in it:

log = EventAccumulator(folder).Reload()
for tag in log.Tags()["scalars"]:
    values = log.Scalars(tag)
    print(f"{tag:20} {len(values):3} values, the last {values[-1].value:.4g}")
print("figures:", log.Tags()["images"])

# %%
# The losses, as :class:`~skpatchsvdd.plotting.LossCurveDisplay` draws them here:

LossCurveDisplay.from_estimator(est)
plt.show()
