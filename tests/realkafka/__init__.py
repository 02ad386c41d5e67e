"""A real Apache Kafka for tests and benchmarks: fetched by Maven, run on 127.0.0.1, ended by process id.

What calls it: the fixtures in tests/broker/conftest.py and the driver of the benchmarks. It never touches a
broker that it did not start itself, and keeps nothing outside its temporary folder and the cache of jars.
"""

from tests.realkafka.client import CommittedOffset, KafkaClient, ReadRecord, Record
from tests.realkafka.cluster import KafkaCluster
from tests.realkafka.jars import KafkaUnavailableError, fetch_jars
from tests.realkafka.members import Member, Members
from tests.realkafka.node import KafkaNode
from tests.realkafka.waiting import wait_until

__all__ = [
    "CommittedOffset",
    "KafkaClient",
    "KafkaCluster",
    "KafkaNode",
    "KafkaUnavailableError",
    "Member",
    "Members",
    "ReadRecord",
    "Record",
    "fetch_jars",
    "wait_until",
]
