"""The image: built from the Dockerfile and run as Kubernetes would, without a container engine.

buildah builds it in a chroot, on a base of the same Debian release as the published one; its root file system
then runs under namespaces of its own, read-only, as the user that the image names, as process 1.
"""
