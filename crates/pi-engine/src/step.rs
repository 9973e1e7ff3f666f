//! One step through the model: the schedule, node by node.

use crate::{
    Error, Result, Session, StepToken,
    engine::Inner,
    layer::{Layer, LayerRun, Observer},
    plan::Side,
    schedule::{Node, Operation},
};
use pi_core::{Hidden, Write};

impl Session {
    /// Computes the tokens of the batch that was planned.
    pub(crate) fn compute(&mut self, tokens: &[StepToken], mut observer: Option<&mut dyn Observer>) -> Result<()> {
        let inner = self.engine.inner.clone();
        self.layers.iter_mut().for_each(|run| run.ffn.abandon());
        for node in inner.model.schedule.nodes() {
            match node.layer {
                Some(layer) => {
                    let observer = observer.as_mut().map(|o| &mut **o as &mut dyn Observer);
                    self.run_in_layer(&inner, layer, node, observer)?;
                }
                None if node.operation == Operation::Embed => self.embed(&inner, tokens)?,
                None if self.wanted.is_empty() => break,
                None => self.run_at_end(&inner, node)?,
            }
        }
        if inner.fallback.is_some() && !self.wanted.is_empty() {
            // a device that fails by now is noticed while the step can still be repeated
            self.logits.host()?;
        }
        for run in &mut self.layers {
            self.stats += run.take_stats();
        }
        Ok(())
    }

    fn embed(&mut self, inner: &Inner, tokens: &[StepToken]) -> Result<()> {
        let (model, dim) = (&inner.model, inner.config.dim);
        let (n, view) = (tokens.len(), model.embedding.view());
        self.h.resize(n)?;
        self.x.resize(n)?;
        let decode = model.embedding.ty().info().decode;
        for (t, row) in tokens.iter().zip(self.h.host_overwrite().chunks_exact_mut(dim)) {
            decode(view.row(t.token as usize), row);
        }
        self.stats.bytes += (n * view.row_bytes()) as u64;
        if let Some(positions) = &model.positions {
            self.stats.bytes += positions.add(&self.batch, &mut self.h, &mut self.x)?;
        }
        Ok(())
    }

    fn run_in_layer(
        &mut self,
        inner: &Inner,
        index: usize,
        node: &Node,
        observer: Option<&mut dyn Observer>,
    ) -> Result<()> {
        let (layer, run): (&Layer, &mut LayerRun) = (&inner.model.layers[index], &mut self.layers[index]);
        let (h, x, active) = (&mut self.h, &mut self.x, &mut self.active);
        let norm = match node.operation {
            Operation::AttentionNorm => &layer.norm1,
            Operation::FfnNorm => &layer.norm2,
            Operation::Attention => {
                run.attention.apply(x, &self.batch, h, Write::Add)?;
                return if inner.check { finite("attention", index, h) } else { Ok(()) };
            }
            Operation::Mark => {
                if let Some(observer) = observer {
                    observer.inputs(index, h.host()?, x.host()?);
                }
                match (&mut run.predictor, &layer.predictor) {
                    (Some(run), Some(predictor)) => {
                        run.mark(h, x, active)?;
                        self.stats.bytes += predictor.bytes();
                    }
                    _ => active.set_all(self.batch.len())?,
                }
                return Ok(());
            }
            Operation::Fetch => return Ok(run.ffn.fetch(x, active)?),
            Operation::Ffn => return Ok(run.ffn.submit(node.side, x, active)?),
            Operation::Merge => {
                if let Some(observer) = observer {
                    observer.values(index, run.ffn.values(self.batch.len())?.host()?);
                }
                let device = match node.side {
                    Side::Cpu => &inner.cpu,
                    Side::Accelerator => &inner.device,
                };
                run.ffn.merge(node.side, &**device, h, self.part.as_mut())?;
                return if inner.check { finite("ffn", index, h) } else { Ok(()) };
            }
            Operation::Embed | Operation::Pick | Operation::OutputNorm | Operation::Head => return Ok(()),
        };
        self.stats.bytes += norm.bytes();
        Ok(norm.apply(h, x, Write::Set)?)
    }

    fn run_at_end(&mut self, inner: &Inner, node: &Node) -> Result<()> {
        let dim = inner.config.dim;
        let (dense, from, to) = match node.operation {
            Operation::Pick => {
                self.picked.resize(self.wanted.len())?;
                let h = self.h.host()?;
                for (&i, row) in self.wanted.iter().zip(self.picked.host_overwrite().chunks_exact_mut(dim)) {
                    row.copy_from_slice(&h[i * dim..(i + 1) * dim]);
                }
                return Ok(());
            }
            Operation::OutputNorm => (&inner.model.norm, &mut self.picked, &mut self.normed),
            Operation::Head => (&inner.model.head, &mut self.normed, &mut self.logits),
            _ => return Ok(()),
        };
        self.stats.bytes += dense.bytes();
        Ok(dense.apply(from, to, Write::Set)?)
    }
}

fn finite(what: &'static str, layer: usize, h: &mut Hidden) -> Result<()> {
    match h.host()?.iter().all(|v| v.is_finite()) {
        true => Ok(()),
        false => Err(Error::NonFinite { what, layer }),
    }
}
