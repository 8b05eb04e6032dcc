"""Three calls by which a script uses its job. They also work without a launcher.

from amp_launcher import job

checkpoints = job.checkpoint_dir()
for step, batch in enumerate(batches):
    loss = train(batch)
    job.log(step, loss=loss, samples=len(batch))
    if job.should_stop():
        torch.save(model.state_dict(), checkpoints / "last.pt")
        break
"""

from amp_launcher.job.logged import log
from amp_launcher.job.stop import checkpoint_dir, should_stop

__all__ = ["checkpoint_dir", "log", "should_stop"]
