"""The plan of a run on several GPUs: memory, communication and time, estimated from shapes and data sheets."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from atento.base.errors import UsageError, nearest
from atento.config.reading.loading import LoadedRecipe
from atento.runs.run_plan import Plan, plan_recipe
from atento.runs.sharded import check_processes
from atento.training.replica.sums import BUCKET

UTILIZATION = 0.4  # of the peak; torchtitan reports 33 to 39 % for Llama 3 8B on H100, and small networks reach less
MACHINE = 8  # GPUs of a machine, which are linked by NVLink

SHARDED = ("weights", "gradients", "optimizer", "moving average")  # parts of a plan that shards divide
ON_THE_HOST = ("copy for a checkpoint", "program and data")  # parts of a plan that are not in the memory of the GPU


@dataclass(frozen=True)
class Accelerator:
    """A GPU, by the data sheets of NVIDIA."""

    flops: float  # floating-point operations a second in bfloat16, without sparsity
    memory: int  # bytes
    link: float  # bytes a second and direction between the GPUs of a machine (NVLink)
    network: float  # bytes a second and direction between machines, for each GPU

    def speed(self, processes: int) -> float:
        """Bytes a second in a ring of so many processes, of which neighbours are on one machine."""
        return self.link if processes <= MACHINE else self.network


ACCELERATORS = {  # data sheets of A100 80GB SXM and DGX A100, H100 SXM and DGX H100, H200 SXM and DGX H200
    "a100": Accelerator(312e12, 80 << 30, 300e9, 25e9),
    "h100": Accelerator(989e12, 80 << 30, 450e9, 50e9),
    "h200": Accelerator(989e12, 141 << 30, 450e9, 50e9),
}


@dataclass(frozen=True)
class WorldPlan:
    """An estimate for one of several processes; sizes in bytes, times in seconds an update."""

    plan: Plan  # the plan of the run, on one GPU
    processes: int  # number of processes, one for each GPU
    device: str  # name of the GPU
    memory: dict[str, int]  # bytes by part on each GPU
    shards: int  # processes that the weights of a copy are sharded over (`training.parallel.shard`)
    sharded: int  # bytes on each GPU if weights, gradients and the optimizer's state were sharded over all
    fits: bool  # whether the memory is that of the GPU at most
    # bytes that each process sends in an update, in rings: an all-reduce of the gradients in float32; or of sharded
    # weights, for each part, the weights twice and the gradients once
    sent: float
    computation: float  # time of the process with the most parts, at 40 % of the peak
    # time to send them, which comes after the computation. A copy of up to 8 shards is on one machine
    communication: float

    @property
    def seconds(self) -> float:
        """Seconds of all updates, without validations and checkpoints."""
        return (self.computation + self.communication) * self.plan.steps

    def to_dict(self) -> dict[str, object]:
        """Return the plan as plain data."""
        return self.plan.to_dict() | {name: value for name, value in asdict(self).items() if name != "plan"}


def plan_world(loaded: LoadedRecipe, device: str, processes: int, report: Callable[[str], None]) -> WorldPlan:
    """Return the plan of a recipe on several GPUs; reads the data, and makes the tokenizer if it has no path.
    Raises UsageError: no such GPU. RecipeError, DataError: as training would.
    """
    if device not in ACCELERATORS:
        raise UsageError(
            f"--world needs the name of a GPU as --device, one of {', '.join(ACCELERATORS)}: got {device!r}"
            f"{nearest(device, [*ACCELERATORS])}"
        )
    check_processes(loaded.recipe, processes)
    training = loaded.recipe.training
    shards = training.parallel.shard
    copies = training.parallel.replicate
    if copies != "auto" and processes != copies * shards:
        raise UsageError(
            f"--world must be {copies * shards}, which `training.parallel` says (`replicate` {copies}, `shard` "
            f"{shards}): got {processes}"
        )
    if processes % shards:
        raise UsageError(
            f"--world must be a multiple of `training.parallel.shard`, {shards}: got {processes}; each copy has as many"
        )
    if training.precision == "auto":  # as on such a GPU
        training = replace(training, precision="bfloat16")
    recipe = replace(loaded.recipe, training=training)
    return estimated(plan_recipe(replace(loaded, recipe=recipe), "cuda", 1, report), device, processes, shards)


def estimated(plan: Plan, device: str, processes: int, shards: int = 1) -> WorldPlan:
    """Return the estimate for each of `processes` processes, from the plan of one."""
    gpu = ACCELERATORS[device]
    memory = memory_of_process(plan, processes, shards)
    rounds = -(-plan.parts // processes)  # parts of the process with the most
    times = rounds if shards > 1 else 1
    in_a_copy, between = (times * sent for sent in sent_by_process(plan, processes, shards))
    return WorldPlan(
        plan=plan,
        processes=processes,
        device=device,
        memory=memory,
        shards=shards,
        sharded=sum(memory_of_process(plan, processes, processes).values()),
        fits=sum(memory.values()) <= gpu.memory,
        sent=in_a_copy + between,
        computation=plan.flops_per_update * rounds / plan.parts / (gpu.flops * UTILIZATION),
        communication=in_a_copy / gpu.speed(shards) + between / gpu.speed(processes),
    )


def memory_of_process(plan: Plan, processes: int, shards: int) -> dict[str, int]:
    """Return the bytes by part on each of several GPUs, whose weights may be sharded."""
    memory = {name: size for name, size in plan.memory.items() if name not in ON_THE_HOST}
    if shards == 1:
        return memory | ({"gradients to send": min(BUCKET, 4 * plan.trained)} if processes > 1 else {})
    width = _width(plan)
    memory.pop("weights in 16 bits", None)  # they are gathered when they are needed
    memory = {name: -(-size // shards) if name in SHARDED else size for name, size in memory.items()}
    # a block is gathered while another one computes; of the one that computes, there are gradients too, and their copy
    # in float32 that is sent
    memory["gathered weights"] = width * (plan.outside_blocks + 2 * plan.largest_block)
    memory["gradients to send"] = (width + 4) * (plan.outside_blocks + plan.largest_block)
    return memory


def sent_by_process(plan: Plan, processes: int, shards: int) -> tuple[float, float]:
    """Return the bytes that a process sends: in an update, or for each of its parts where weights are sharded.

    Returns:
        What it sends to the processes of its copy, and to those of the other copies.
    """
    if shards == 1:
        return 0.0, 2 * (processes - 1) / processes * 4.0 * plan.trained
    blocks, copies = plan.parameters - plan.outside_blocks, processes // shards
    gathered = _width(plan) * (plan.parameters + blocks)  # blocks once more in the backward pass
    in_a_copy = (shards - 1) / shards * (gathered + 4.0 * plan.trained)
    return in_a_copy, 2 * (copies - 1) / copies * 4.0 * plan.trained / shards


def _width(plan: Plan) -> int:
    """Bytes of a weight as it computes."""
    return 2 if "weights in 16 bits" in plan.memory else 4
