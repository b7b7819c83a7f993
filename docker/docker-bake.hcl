# The images of the stacks: docker buildx bake -f docker/docker-bake.hcl [cpu|cpu-091|npu|cuda|cuda-061] [--load]
# Every variable here can be set in the environment; docs/images.md shows how to build behind a mirror.

variable "IMAGES" {
  description = "Where images are named: a prefix, perhaps with a registry."
  default     = "verlbox"
}
variable "VERSION" {
  description = "Tag and version label."
  default     = "0.1.0"
}
variable "REVISION" {
  description = "Commit of the sources, perhaps with -dirty: for the label, and for the manifests of runs."
  default     = "unknown"
}
variable "PIP_INDEX_URL" {
  description = "Package index. Credentials go into a netrc file (--secret id=netrc), never into this address."
  default     = "https://pypi.org/simple"
}
variable "TORCH_INDEX" {
  description = "PyTorch's index of CPU builds."
  default     = "https://download.pytorch.org/whl/cpu"
}
variable "APT_MIRROR" {
  description = "Scheme and host in place of those of Debian's or Ubuntu's own servers."
  default     = ""
}
variable "WHEELS" {
  description = "A folder with wheels that are used before any index."
  default     = ""
}
variable "CPU_BASE" {
  default = "python:3.11-slim"
}
variable "NPU_BASE" {
  default = "quay.io/ascend/cann:8.3.rc2-910b-ubuntu22.04-py3.11"
}
variable "TORCH_NPU" {
  description = "2.7.1.post2 for a base with CANN 8.5.0, in place of the pinned torch-npu."
  default     = ""
}
variable "CUDA_BASE" {
  description = "Empty: the one of the stack."
  default = ""
}
variable "CUDA_DEVEL" {
  default = ""
}
variable "PARTIAL" {
  description = "1 leaves out the wheels for the accelerator, to test the rest of an image."
  default     = ""
}

group "default" {
  targets = ["cpu", "npu", "cuda"]
}

target "common" {
  context  = "."
  contexts = WHEELS == "" ? {} : { wheels = WHEELS }
  args = {
    VERSION       = VERSION
    REVISION      = REVISION
    PIP_INDEX_URL = PIP_INDEX_URL
    TORCH_INDEX   = TORCH_INDEX
    APT_MIRROR    = APT_MIRROR
  }
}

target "cpu" {
  inherits   = ["common"]
  dockerfile = "docker/cpu.Dockerfile"
  args       = { BASE = CPU_BASE }
  tags       = ["${IMAGES}/cpu:${VERSION}"]
}

target "cpu-091" {
  inherits = ["cpu"]
  args     = { STACK = "cpu-091" }
  tags     = ["${IMAGES}/cpu-091:${VERSION}"]
}

target "npu" {
  inherits   = ["common"]
  dockerfile = "docker/npu.Dockerfile"
  args       = { BASE = NPU_BASE, TORCH_NPU = TORCH_NPU, PARTIAL = PARTIAL }
  tags       = ["${IMAGES}/npu:${VERSION}"]
}

target "cuda" {
  inherits   = ["common"]
  dockerfile = "docker/cuda.Dockerfile"
  args = {
    STACK   = "cuda"
    BASE    = CUDA_BASE == "" ? "nvidia/cuda:13.0.2-base-ubuntu24.04" : CUDA_BASE
    DEVEL   = CUDA_DEVEL == "" ? "nvidia/cuda:13.0.2-devel-ubuntu24.04" : CUDA_DEVEL
    PARTIAL = PARTIAL
  }
  tags = ["${IMAGES}/cuda:${VERSION}"]
}

target "cuda-061" {
  inherits = ["cuda"]
  args = {
    STACK = "cuda-061"
    BASE  = CUDA_BASE == "" ? "nvidia/cuda:12.8.1-base-ubuntu22.04" : CUDA_BASE
    DEVEL = CUDA_DEVEL == "" ? "nvidia/cuda:12.8.1-devel-ubuntu22.04" : CUDA_DEVEL
  }
  tags = ["${IMAGES}/cuda-061:${VERSION}"]
}
