"""The ids of samples: made, taken apart, and told from ids that are no sample's."""

import pytest

from everbatch.base.sample_ids import request_of_sample, sample_id, sample_ids


def test_a_request_of_one_sample_runs_under_its_own_id():
    assert sample_ids("a", 1) == ["a"]


def test_the_samples_of_several_are_numbered_from_0():
    assert sample_ids("a", 3) == ["a/0", "a/1", "a/2"]


@pytest.mark.parametrize("request_id", ["a", "a/0", "a b/c", "", "/"])
@pytest.mark.parametrize("number", [0, 9, 65_535])
def test_the_request_of_a_sample_is_found_again(request_id, number):
    assert request_of_sample(sample_id(request_id, number)) == request_id


@pytest.mark.parametrize("id", ["a", "0", "a/", "a/b", "a/-1", "a/1.5", "a/²", "a/٣", ""])
def test_what_no_sample_is_called_is_of_no_request(id):
    assert request_of_sample(id) is None
