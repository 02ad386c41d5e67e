"""A node with more listeners: one with SASL PLAIN, one with TLS, and one that advertises where nobody
listens.

What calls it: tests of what a client says when it is let in, and when it is not. Its certificate is made by
openssl for this run, and ends within days.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.realkafka.cluster import KafkaCluster, _properties
from tests.realkafka.node import HOST, free_ports

USER, PASSWORD = "alice", "alice-secret"


class SecuredKafka(KafkaCluster):
    """One node. ``login``, ``tls`` and ``astray`` are the addresses of its further listeners.

    Alice may do everything that no rule denies. ``authority`` is the file of the certificate's authority.
    """

    login = tls = astray = ""
    authority: Path

    def _lay_out(self, command: Sequence[str]) -> None:
        super()._lay_out(command)
        [node] = self.nodes
        self.login, self.tls, self.astray = (f"{HOST}:{port}" for port in free_ports(3))
        self.authority = node.folder / "certificate.pem"
        key = node.folder / "key.pem"
        subprocess.run(
            [
                *(
                    "openssl",
                    "req",
                    "-x509",
                    "-newkey",
                    "rsa:2048",
                    "-nodes",
                    "-days",
                    "2",
                    "-subj",
                    f"/CN={HOST}",
                ),
                *("-addext", f"subjectAltName=IP:{HOST}", "-keyout", str(key), "-out", str(self.authority)),
            ],
            check=True,
            capture_output=True,
        )
        both = node.folder / "keystore.pem"
        both.write_text(key.read_text() + self.authority.read_text(), encoding="ascii")
        listeners = {"LOGIN": self.login, "TLS": self.tls, "ASTRAY": self.astray}
        shown = ",".join(f"{name}://{address}" for name, address in listeners.items())
        plain = f"PLAINTEXT://{node.address}"
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        node.write_properties(
            {
                **_properties(self.nodes),
                "listeners": f"{plain},CONTROLLER://{HOST}:{node.controller_port},{shown}",
                "advertised.listeners": f"{plain},{shown.replace(self.astray, f'{HOST}:9')}",
                "listener.security.protocol.map": (
                    "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,TLS:SSL,ASTRAY:PLAINTEXT"
                ),
                "sasl.enabled.mechanisms": "PLAIN",
                "listener.name.login.plain.sasl.jaas.config": f'{login} user_{USER}="{PASSWORD}";',
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(both),
            }
        )
