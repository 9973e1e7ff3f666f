//! Counts that were made elsewhere.

use super::{Profile, ProfileError, fingerprint};

impl Profile {
    /// Adds counts from elsewhere, such as PowerInfer's activation files, as a text of this name, and returns its place: a row for
    /// each layer, *by the layer's number*, with how often each of its neurons fired. The same counts are added once.
    ///
    /// Such counts do not say how many tokens there were, nor how large values were: the largest count is taken for the number of
    /// tokens, and sums are 0.
    ///
    /// # Errors
    /// [`ProfileError::Mismatch`] if there are other layers or neurons than [`shape`](Self::shape) has, or a number is no count
    /// (up to 2^36).
    pub fn import(&mut self, name: &str, rows: &[Vec<f32>]) -> Result<usize, ProfileError> {
        if rows.len() != self.shape.len() {
            return Err(ProfileError::mismatch("layers of the activations", self.shape.len(), rows.len()));
        }
        let mut layers = Vec::with_capacity(rows.len());
        for (&(layer, neurons), row) in self.shape.iter().zip(rows) {
            if row.len() != neurons as usize {
                let what = format!("neurons of layer {layer} of the activations");
                return Err(ProfileError::mismatch(what, neurons, row.len()));
            }
            if let Some((i, bad)) = row.iter().enumerate().find(|(_, v)| !(0.0..=MOST).contains(*v) || v.fract() != 0.0)
            {
                let what = format!("activations of neuron {i} of layer {layer}");
                return Err(ProfileError::mismatch(what, "a whole number from 0 to 2^36", bad));
            }
            layers.push(row.iter().map(|v| *v as u64).collect::<Vec<u64>>());
        }
        let bytes: Vec<u8> = layers.iter().flatten().flat_map(|n| n.to_le_bytes()).collect();
        let fingerprint = fingerprint([&b"activations"[..], &bytes]);
        if let Some(known) = self.find(fingerprint) {
            return Ok(known);
        }
        let tokens = layers.iter().flatten().copied().max().unwrap_or(0);
        let place = self.begin(name, fingerprint, tokens);
        let text = &mut self.texts[place];
        text.position = tokens;
        text.counts.count_tokens(tokens);
        for (i, fired) in layers.into_iter().enumerate() {
            if let Some(layer) = text.counts.layer_mut(i) {
                layer.set_fired(fired);
            }
        }
        Ok(place)
    }
}

/// 2^36, as many tokens as a text of a profile can have.
const MOST: f32 = 68_719_476_736.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_from_elsewhere_become_a_text_of_their_own_once() {
        let mut profile = Profile::new("m", 1, &[3, 3]);
        let rows = [vec![5.0, 0.0, 1.0], vec![0.0, 7.0, 0.0]];
        assert_eq!((profile.import("a", &rows), profile.import("b", &rows)), (Ok(0), Ok(0)));
        let text = &profile.texts()[0];
        assert!(text.is_complete() && text.name == "a");
        assert_eq!((text.length, text.counts.tokens(), text.counts.layers()[1].fired()), (7, 7, &[0, 7, 0][..]));
        let mut bytes = Vec::new();
        profile.write(&mut bytes).unwrap();
        assert_eq!(Profile::read(&bytes).unwrap(), profile);
    }

    #[test]
    fn what_are_no_counts_of_this_model_is_refused_by_layer_and_neuron() {
        let mut profile = Profile::new("m", 1, &[2, 2]);
        let mut refused = |rows: &[Vec<f32>], said: &str| {
            let e = profile.import("a", rows).unwrap_err().to_string();
            assert!(e.contains(said), "{e}");
        };
        refused(&[vec![1.0, 1.0]], "layers of the activations: expected 2, got 1");
        refused(&[vec![1.0, 1.0], vec![1.0]], "neurons of layer 1 of the activations: expected 2, got 1");
        for bad in [0.5, -1.0, f32::NAN, f32::INFINITY, 1e30] {
            refused(&[vec![1.0, 1.0], vec![1.0, bad]], "activations of neuron 1 of layer 1");
        }
        assert!(profile.texts().is_empty());
    }
}
