//! How a device is opened.

/// Where kernels come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelSource {
    /// The PTX that is part of this crate, which the driver compiles further.
    #[default]
    Shipped,
    /// Compiled from source for the chip at hand when they are needed, by NVRTC, a library of the CUDA toolkit. What it does not
    /// compile comes from the shipped PTX ([`Cuda::note`](crate::Cuda::note) says why).
    Nvrtc,
}

/// Where keys and values of sequences are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvPlace {
    /// In the device's memory.
    #[default]
    Device,
    /// In the host's memory, pinned; kernels read them over the bus. For contexts that do not fit the device: it then has room for
    /// more neurons, and attention is as slow as the bus.
    Host,
}

/// How kernels are launched. Results are the same, to the bit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum GraphUse {
    /// Many at a time, as CUDA graphs, where the same ones are launched again: for every token that is decoded. If the driver makes none,
    /// one by one ([`Cuda::note`](crate::Cuda::note) says why).
    #[default]
    Auto,
    /// One by one.
    Off,
}

/// What multiplies matrices by many tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TensorCores {
    /// Tensor cores where the chip has them (compute capability 7.5). Inputs, and weights that are not exact in their numbers, are split in two
    /// numbers of 11 bits each, so results are off by no more than sums of floats are: by 2e-6 of the size of what is added up at most. That holds
    /// while 32 neighbours of an input, and of split weights, are within a factor of 100,000 of the largest of them (of down rows: eight
    /// columns of sixteen neurons), or 0; what is smaller loses bits. Infinities come out as NaN.
    #[default]
    Auto,
    /// Floats.
    Off,
}

/// How a device is opened.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct CudaOptions {
    /// Where kernels come from.
    pub kernels: KernelSource,
    /// Where keys and values are.
    pub kv: KvPlace,
    /// How kernels are launched.
    pub graphs: GraphUse,
    /// What multiplies matrices in prompts.
    pub tensor_cores: TensorCores,
    /// How often weights of neurons would be read in a step of 16 tokens or more for it to be computed densely: as products of matrices
    /// of all neurons and tokens, which read each weight once but skip nothing. The other way reads a neuron's weights once for every four
    /// tokens any of which marks it. The device decides for each step by its marks. 0 and NaN: always dense; infinity: never.
    pub crossover: f32,
}

impl Default for CudaOptions {
    fn default() -> Self {
        Self {
            kernels: KernelSource::default(),
            kv: KvPlace::default(),
            graphs: GraphUse::default(),
            tensor_cores: TensorCores::default(),
            crossover: CROSSOVER,
        }
    }
}

/// Reads of all weights that cost as much as the dense way. Not measured on a GPU yet: it is what 16 tokens that mark all neurons have.
const CROSSOVER: f32 = 4.0;

impl CudaOptions {
    /// The same with kernels from elsewhere.
    pub fn kernels(self, kernels: KernelSource) -> Self {
        Self { kernels, ..self }
    }

    /// The same with keys and values elsewhere.
    pub fn kv(self, kv: KvPlace) -> Self {
        Self { kv, ..self }
    }

    /// The same with or without tensor cores.
    pub fn tensor_cores(self, tensor_cores: TensorCores) -> Self {
        Self { tensor_cores, ..self }
    }

    /// The same with or without graphs.
    pub fn graphs(self, graphs: GraphUse) -> Self {
        Self { graphs, ..self }
    }

    /// The same with another crossover.
    pub fn crossover(self, crossover: f32) -> Self {
        Self { crossover, ..self }
    }
}
