"""A folder that a single node wrote, when the node gets a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from amqp10broker import Broker, Config
from tests.support.cluster_process import free_ports
from tests.support.http_user import http_user

pytestmark = pytest.mark.real_clock


async def test_a_single_node_that_gets_a_name_keeps_its_clusters_name_and_tags(tmp_path: Path) -> None:
    """Clients get the same answers where there is no other node."""
    secret = tmp_path / "secret"
    secret.write_text("a secret of some length\n")
    secret.chmod(0o600)
    config = Config(port=free_ports(1), data_dir=str(tmp_path / "a"), admin_socket="")
    tags, name = {"region": "north"}, {"name": "cluster_name", "value": "shop"}
    async with Broker(config) as broker, http_user(broker) as user:
        assert await user.put("/cluster-name", {"name": "shop"}) == 204
        assert await user.put("/global-parameters/cluster_tags", {"value": tags}) == 204
    async with (
        Broker(replace(config, node_name="a", cluster_secret_file=str(secret))) as broker,
        http_user(broker) as user,
    ):
        assert await user.get("/cluster-name") == {"name": "shop"}
        document = await user.get("/definitions")
        assert document["original_cluster_name"] == "shop"
        assert {"name": "cluster_tags", "value": tags} in document["global_parameters"]
        assert name in document["global_parameters"]
        assert broker.catalog.alone
