//! The schedule of a model that is not loaded, for looking at plans.

use super::{LayerShape, Marking, Schedule, build};
use crate::{
    Plan, Predictors, Result, Side, Sparsity, WeightSource,
    arch::{self, Slot},
    predictors,
    source::Reader,
};
use pi_core::{Device, QuantType};

impl Schedule {
    /// The schedule that a file would have with this plan on `device`, without loading it. It is that of
    /// [`Engine::schedule`](crate::Engine::schedule), but for layers whose predictors the caller brings: of those it is assumed
    /// that they run on the CPU.
    ///
    /// # Errors
    /// If the file is of an unknown family, a tensor is missing, or the plan is for another model.
    pub fn of_file(
        source: &dyn WeightSource,
        plan: &Plan,
        sparsity: Sparsity,
        predictors: &Predictors,
        device: &dyn Device,
    ) -> Result<Self> {
        let (arch, config) = arch::detect(source)?;
        plan.check(&config)?;
        let file = File { reader: Reader { source, check: false }, arch, device };
        let shapes = (0..config.layers).map(|i| {
            let first = if config.gating == pi_core::Gating::UpOnly { Slot::Up } else { Slot::Gate };
            let types = [file.ty(first, i)?, file.ty(Slot::Up, i)?, file.down(i)?];
            let hot = if file.supports(types) { plan.layers[i].hot.len() } else { 0 };
            let home = file.home(plan.layers[i].dense, i)?;
            let marking = match sparsity {
                Sparsity::Predictor => file.marking(predictors, home, first, i)?,
                _ => None,
            };
            let own = config.parallel && file.reader.find(&file.name(Slot::AttentionNorm, i))?.is_some();
            Ok(LayerShape { home, marking, hot, cold: config.neurons - hot, shares_norm: config.parallel && !own })
        });
        let shapes = shapes.collect::<Result<Vec<_>>>()?;
        let head = match file.reader.find(&file.name(Slot::Output, 0))? {
            Some(head) => head.ty(),
            None => file.ty(Slot::Embedding, 0)?,
        };
        let names = ["cpu".into(), device.info().name];
        Ok(build(&shapes, file.side(plan.head, [head]), names, |order| arch.layer(order)))
    }
}

struct File<'a> {
    reader: Reader<'a>,
    arch: &'a dyn arch::Architecture,
    device: &'a dyn Device,
}

impl File<'_> {
    fn name(&self, slot: Slot, layer: usize) -> String {
        format!("{}.weight", self.arch.tensor(slot, layer))
    }

    fn ty(&self, slot: Slot, layer: usize) -> Result<QuantType> {
        Ok(self.reader.matrix(&self.name(slot, layer))?.ty())
    }

    fn down(&self, layer: usize) -> Result<QuantType> {
        match self.reader.find(&self.name(Slot::DownTransposed, layer))? {
            Some(down) => Ok(down.ty()),
            None => self.ty(Slot::Down, layer),
        }
    }

    fn supports(&self, types: impl IntoIterator<Item = QuantType>) -> bool {
        types.into_iter().all(|ty| self.device.supports(ty))
    }

    fn side(&self, wanted: Side, types: impl IntoIterator<Item = QuantType>) -> Side {
        if self.supports(types) { wanted } else { Side::Cpu }
    }

    fn home(&self, wanted: Side, layer: usize) -> Result<Side> {
        let output = self.ty(Slot::AttentionOutput, layer)?;
        Ok(match self.reader.find(&self.name(Slot::QueryKeyValue, layer))? {
            Some(all) => self.side(wanted, [all.ty(), output]),
            None => {
                let [q, k, v] = [Slot::Query, Slot::Key, Slot::Value].map(|slot| self.ty(slot, layer));
                self.side(wanted, [q?, k?, v?, output])
            }
        })
    }

    fn marking(&self, wanted: &Predictors, home: Side, gate: Slot, layer: usize) -> Result<Option<Marking>> {
        let marking = |kind: &str, side| Some(Marking { kind: kind.into(), side });
        let beside = wanted.beside().map(|source| Reader { source, check: false });
        Ok(match wanted {
            Predictors::File { .. } | Predictors::Beside { .. } => {
                let reader = beside.unwrap_or(self.reader);
                let fc = [Slot::Predictor1, Slot::Predictor2].map(|slot| reader.find(&self.name(slot, layer)));
                match (predictors::kind(reader.source, layer)?, fc) {
                    (predictors::Kind::Sign { .. }, _) => marking("sign", Side::Cpu),
                    (predictors::Kind::Mlp, [Ok(Some(fc1)), Ok(Some(fc2))]) => {
                        marking("mlp", self.side(home, [fc1.ty(), fc2.ty()]))
                    }
                    _ => None,
                }
            }
            Predictors::Sign { .. } => marking("sign", Side::Cpu),
            Predictors::Oracle => marking("oracle", self.side(home, [self.ty(gate, layer)?])),
            Predictors::Own(all) => all.get(layer).and_then(|p| marking(p.as_ref()?.kind(), Side::Cpu)),
        })
    }
}
