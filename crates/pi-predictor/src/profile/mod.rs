//! How often each neuron fires: what a profile holds, and its file.
//!
//! A [`Profile`] is counted by whoever runs the model (`pi profile`, `pi_engine::profile`) and read by whoever wants to know which
//! neurons are hot: placement, training, plots. Texts are kept apart, so that they can be compared; [`Profile::merged`] adds them up.
//! Statistics are in [`Counts`] (paper §3.1).
//!
//! # The file
//!
//! Numbers are little-endian, texts are a u32 length and that many bytes of UTF-8. Layers are told apart by the *numbers* they have
//! in the model, from 0, and come in ascending order.
//!
//! | | |
//! |---|---|
//! | `pi-prof\n` | 8 bytes |
//! | version | u32, 2; what is marked with * is not there in version 1 |
//! | model | text: for people |
//! | fingerprint | u64, tells models apart |
//! | layers | u32; then for each its number, u32, and how many neurons it has, u32 |
//! | texts | u32; then for each: |
//! | – name | text: for people |
//! | – fingerprint | u64, tells texts apart |
//! | – length | u64, tokens of the text that are to be counted |
//! | – position | u64, tokens of it that were passed, counted or not. Less than the length if counting goes on there |
//! | – context * | u64, tokens that were computed together from an empty context; 0: not known |
//! | – tokens | u64, tokens that were counted |
//! | – for each layer | how often each neuron fired, u64 each; the sum of each neuron's absolute values, f64 each |
//! | checksum | u64, FNV-1a of all bytes before |

mod counts;
mod file;
mod import;

pub use counts::{Counts, LayerCounts};
pub use file::{MAGIC, fingerprint};

/// Why a profile cannot be read or put together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file is no profile, or is damaged.
    #[error("byte {at}: expected {expected}, got {got}")]
    Damaged {
        /// Where in the file.
        at: usize,
        /// What should be there.
        expected: String,
        /// What is.
        got: String,
    },
    /// Two things do not belong together.
    #[error("{what}: expected {expected}, got {got}")]
    Mismatch {
        /// Of what.
        what: String,
        /// What would have fitted.
        expected: String,
        /// What came.
        got: String,
    },
}

impl ProfileError {
    /// A [`ProfileError::Mismatch`].
    pub fn mismatch(what: impl ToString, expected: impl ToString, got: impl ToString) -> Self {
        Self::Mismatch { what: what.to_string(), expected: expected.to_string(), got: got.to_string() }
    }
}

/// How often the neurons of a model fired along some texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The model, for people.
    pub model: String,
    /// Tells the model apart from others. See [`fingerprint`].
    pub fingerprint: u64,
    /// What was counted for each text. All have the layers of [`shape`](Self::shape).
    texts: Vec<TextProfile>,
    /// Number and neurons of each layer.
    shape: Vec<(u32, u32)>,
}

/// How often neurons fired along one text, possibly not to its end.
#[derive(Clone, Debug, PartialEq)]
pub struct TextProfile {
    /// The text, for people.
    pub name: String,
    /// Tells the text apart from others. See [`fingerprint`].
    pub fingerprint: u64,
    /// Tokens of the text that are to be counted.
    pub length: u64,
    /// Tokens passed. Counting goes on here if this is less than `length`.
    pub position: u64,
    /// Tokens that were computed together from an empty context, on which counts depend; 0 if it is not known.
    pub context: u64,
    /// What was counted.
    pub counts: Counts,
}

impl TextProfile {
    /// Whether the text was counted to its end.
    pub fn is_complete(&self) -> bool {
        self.position >= self.length
    }
}

impl Profile {
    /// A profile without texts, of a model whose layers 0, 1, … have `neurons[0]`, `neurons[1]`, … neurons.
    pub fn new(model: impl Into<String>, fingerprint: u64, neurons: &[u32]) -> Self {
        let shape = (0..).zip(neurons.iter().copied()).collect();
        Self { model: model.into(), fingerprint, texts: Vec::new(), shape }
    }

    /// Number and neurons of each layer, in ascending order of the numbers.
    pub fn shape(&self) -> &[(u32, u32)] {
        &self.shape
    }

    /// The texts.
    pub fn texts(&self) -> &[TextProfile] {
        &self.texts
    }

    /// The `i`-th text, to count on.
    pub fn text_mut(&mut self, i: usize) -> Option<&mut TextProfile> {
        self.texts.get_mut(i)
    }

    /// Where the text of this fingerprint is, if it is there.
    pub fn find(&self, fingerprint: u64) -> Option<usize> {
        self.texts.iter().position(|text| text.fingerprint == fingerprint)
    }

    /// Adds a text of which nothing was counted yet, and returns its place.
    pub fn begin(&mut self, name: impl Into<String>, fingerprint: u64, length: u64) -> usize {
        let counts = Counts::new(&self.shape);
        self.texts.push(TextProfile { name: name.into(), fingerprint, length, position: 0, context: 0, counts });
        self.texts.len() - 1
    }

    /// All texts together.
    pub fn merged(&self) -> Counts {
        let mut all = Counts::new(&self.shape);
        self.texts.iter().for_each(|text| all.add_same(&text.counts));
        all
    }

    /// Adds the texts of another profile of the same model. Of a text that both have, the one that came further is kept.
    ///
    /// # Errors
    /// If the other is of another model.
    pub fn merge(&mut self, other: Self) -> Result<(), ProfileError> {
        self.expect_model(other.fingerprint, &other.shape)?;
        for text in other.texts {
            match self.find(text.fingerprint).map(|i| &mut self.texts[i]) {
                Some(mine) if mine.position < text.position => *mine = text,
                Some(_) => {}
                None => self.texts.push(text),
            }
        }
        Ok(())
    }

    /// # Errors
    /// Unless this is a profile of the model with that fingerprint and shape.
    pub fn expect_model(&self, fingerprint: u64, shape: &[(u32, u32)]) -> Result<(), ProfileError> {
        if self.shape != shape {
            let sizes = |shape: &[(u32, u32)]| {
                let neurons: u64 = shape.iter().map(|l| u64::from(l.1)).sum();
                format!("{} layers of {neurons} neurons in all", shape.len())
            };
            return Err(ProfileError::mismatch("the profile's model", sizes(shape), sizes(&self.shape)));
        }
        if self.fingerprint != fingerprint {
            let (want, got) = (format!("{fingerprint:016x}"), format!("{:016x} ({})", self.fingerprint, self.model));
            return Err(ProfileError::mismatch("the profile's model", want, got));
        }
        Ok(())
    }
}
