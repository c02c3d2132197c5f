"""The benchmark of the scheduler runs: its steps are those of decodes alone."""

import bench_scheduler


def test_a_size_gives_the_cost_of_each_of_its_steps():
    costs = bench_scheduler.step_costs_us(4, num_waiting=3, num_blocks=0)

    assert len(costs) == bench_scheduler.NUM_STEPS
    assert min(costs) > 0
