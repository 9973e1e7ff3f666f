//! From where things are to the order in which they are computed.

use super::{Move, Node, Operation, Schedule, Value};
use crate::plan::Side;

/// Who marks a layer's neurons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marking {
    /// [`pi_core::Predictor::kind`].
    pub kind: String,
    pub side: Side,
}

/// Where the parts of a layer are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LayerShape {
    /// Norms and attention, and so the residual stream.
    pub home: Side,
    pub marking: Option<Marking>,
    /// Neurons on the accelerator and on the CPU.
    pub hot: usize,
    pub cold: usize,
    /// The norms before attention and before the FFN are one.
    pub shares_norm: bool,
}

impl LayerShape {
    fn neurons(&self, side: Side) -> usize {
        if side == Side::Accelerator { self.hot } else { self.cold }
    }

    /// Whether there is an operator for the neurons of a side. A layer without neurons is the CPU's.
    pub(crate) fn has(&self, side: Side) -> bool {
        self.neurons(side) > 0 || (side == Side::Cpu && self.hot == 0)
    }
}

/// The calls of one layer, in the order that a family puts them in.
pub struct LayerOrder<'a> {
    shape: &'a LayerShape,
    nodes: Vec<Node>,
    layer: usize,
}

impl LayerOrder<'_> {
    fn push(&mut self, operation: Operation, side: Side) {
        self.nodes.push(node(operation, Some(self.layer), side));
    }

    /// `x = norm1(h)`.
    pub fn norm1(&mut self) {
        self.push(Operation::AttentionNorm, self.shape.home);
    }

    /// `h += attention(x)`.
    pub fn attention(&mut self) {
        self.push(Operation::Attention, self.shape.home);
    }

    /// Marks the neurons that may fire, from `h`, which no branch of the layer may have changed yet, or from `x = norm2(h)`.
    /// Without a predictor that is all of them.
    pub fn mark(&mut self) {
        let marking = self.shape.marking.as_ref();
        self.push(Operation::Mark, marking.map_or(Side::Cpu, |m| m.side));
        if let Some(last) = self.nodes.last_mut() {
            last.predictor = marking.map(|m| m.kind.clone());
        }
    }

    /// `x = norm2(h)`.
    pub fn norm2(&mut self) {
        self.push(Operation::FfnNorm, self.shape.home);
    }

    /// Whether [`norm1`](Self::norm1) and [`norm2`](Self::norm2) are one.
    pub fn shares_norm(&self) -> bool {
        self.shape.shares_norm
    }

    /// `h += ffn(x)` over the marked neurons.
    pub fn ffn(&mut self) {
        self.start_ffn();
        self.finish_ffn();
    }

    /// The first half of [`ffn`](Self::ffn): takes `x`, which may be changed then.
    pub fn start_ffn(&mut self) {
        if self.shape.has(Side::Cpu) {
            self.push(Operation::Fetch, Side::Accelerator);
        }
        for side in [Side::Accelerator, Side::Cpu] {
            if self.shape.has(side) {
                self.push(Operation::Ffn, side);
                if let Some(last) = self.nodes.last_mut() {
                    last.neurons = self.shape.neurons(side);
                }
            }
        }
    }

    /// The second half: adds the result to `h`.
    pub fn finish_ffn(&mut self) {
        self.push(Operation::Merge, self.shape.home);
    }
}

fn node(operation: Operation, layer: Option<usize>, side: Side) -> Node {
    Node { operation, layer, side, neurons: 0, predictor: None, needs: Vec::new(), moves: Vec::new() }
}

/// The schedule of a model. `order` records one layer's calls, `names` are those of the CPU and of the accelerator.
pub(crate) fn build(
    shapes: &[LayerShape],
    head: Side,
    names: [String; 2],
    order: impl Fn(&mut LayerOrder<'_>),
) -> Schedule {
    let mut nodes = vec![node(Operation::Embed, None, Side::Cpu)];
    for (layer, shape) in shapes.iter().enumerate() {
        let mut calls = LayerOrder { shape, nodes: Vec::new(), layer };
        order(&mut calls);
        nodes.extend(busy(calls.nodes, shape));
    }
    nodes.push(node(Operation::Pick, None, Side::Cpu));
    nodes.push(node(Operation::OutputNorm, None, head));
    nodes.push(node(Operation::Head, None, head));
    let uses: Vec<Uses> = nodes.iter().map(|n| uses(n, n.layer.map(|l| &shapes[l]))).collect();
    let needs = needs(&uses);
    let mut places = Places::default();
    for ((node, uses), needs) in nodes.iter_mut().zip(&uses).zip(needs) {
        node.moves = places.run(node, uses);
        node.needs = needs;
    }
    // a fetch of what is on the CPU already would only be in the way of reading the graph
    Schedule { nodes: without_idle(nodes), names, layers: shapes.len() }
}

/// What a node reads and writes.
#[derive(Clone, Debug, Default)]
struct Uses {
    reads: Vec<Value>,
    writes: Vec<Value>,
    /// Read, but not where the node is computed: it only must not have been changed before.
    keeps: Vec<Value>,
}

fn uses(node: &Node, shape: Option<&LayerShape>) -> Uses {
    use Value::{Gates, Input, Logits, Marks, Normed, Part, Picked, Stream};
    let marked = shape.is_some_and(|s| s.marking.is_some());
    let with_marks = |mut values: Vec<Value>| {
        values.extend(marked.then_some(Marks));
        values
    };
    let (reads, writes, keeps) = match node.operation {
        Operation::Embed => (vec![], vec![Stream], vec![]),
        Operation::AttentionNorm | Operation::FfnNorm => (vec![Stream], vec![Input], vec![]),
        Operation::Attention => (vec![Input, Stream], vec![Stream], vec![]),
        Operation::Mark => {
            let reads = match node.predictor.as_deref() {
                None => vec![],
                Some("mlp") => vec![Stream],
                Some("sign" | "oracle") => vec![Input],
                Some(_) => vec![Stream, Input],
            };
            let gates = node.predictor.as_deref() == Some("oracle") && node.side == Side::Accelerator;
            let writes = if gates { vec![Gates, Marks] } else { vec![Marks] };
            // observers look at both
            (reads, writes, vec![Stream, Input])
        }
        Operation::Fetch => (with_marks(vec![Input]), with_marks(vec![Input]), vec![]),
        // that all neurons are marked is known on both sides
        Operation::Ffn => (with_marks(vec![Input]), vec![Part(node.side)], vec![Marks]),
        Operation::Merge => {
            let sides = [Side::Accelerator, Side::Cpu].into_iter().filter(|s| shape.is_some_and(|l| l.has(*s)));
            let mut reads: Vec<Value> = sides.map(Part).collect();
            reads.push(Stream);
            (reads, vec![Stream], vec![])
        }
        Operation::Pick => (vec![Stream], vec![Picked], vec![]),
        Operation::OutputNorm => (vec![Picked], vec![Normed], vec![]),
        Operation::Head => (vec![Normed], vec![Logits], vec![]),
    };
    Uses { reads, writes, keeps }
}

/// Whether `later` has to come after `earlier`.
fn follows(later: &Uses, earlier: &Uses) -> bool {
    let seen = |u: &Uses, v: &Value| u.reads.contains(v) || u.keeps.contains(v);
    earlier.writes.iter().any(|v| seen(later, v) || later.writes.contains(v))
        || later.writes.iter().any(|v| seen(earlier, v))
}

/// A layer's nodes in an order that keeps both sides busy: whatever goes into the accelerator's queue comes as early as it
/// can, and the CPU begins with its own part when nothing more can be queued. Otherwise the family's order stays.
fn busy(mut nodes: Vec<Node>, shape: &LayerShape) -> Vec<Node> {
    let mut ordered = Vec::with_capacity(nodes.len());
    while !nodes.is_empty() {
        let all: Vec<Uses> = nodes.iter().map(|n| uses(n, Some(shape))).collect();
        let ready = |i: &usize| !all[..*i].iter().any(|before| follows(&all[*i], before));
        let queued = (0..nodes.len()).filter(ready).find(|&i| nodes[i].side == Side::Accelerator);
        // the first is always ready
        ordered.push(nodes.remove(queued.unwrap_or(0)));
    }
    ordered
}

/// What each node needs, without what follows from that.
fn needs(uses: &[Uses]) -> Vec<Vec<usize>> {
    let mut all: Vec<Vec<usize>> = Vec::with_capacity(uses.len());
    for i in 0..uses.len() {
        let mut direct: Vec<usize> = Vec::new();
        // whatever came before a node that changed the residual stream was needed for that one, so this does not look far back
        for k in (0..i).rev() {
            if direct.iter().any(|&d| reaches(&all, d, k)) {
                continue;
            }
            if follows(&uses[i], &uses[k]) {
                direct.push(k);
            }
            if i - k > 32 && !direct.is_empty() {
                break;
            }
        }
        direct.reverse();
        all.push(direct);
    }
    all
}

/// Whether `from` needs `to`, however indirectly.
fn reaches(needs: &[Vec<usize>], from: usize, to: usize) -> bool {
    from == to || needs[from].iter().any(|&n| n >= to && reaches(needs, n, to))
}

/// Where the newest copies of values are.
#[derive(Default)]
struct Places(Vec<(Value, Vec<Side>)>);

impl Places {
    /// Runs a node; returns what has to be copied for it.
    fn run(&mut self, node: &Node, uses: &Uses) -> Vec<Move> {
        let to = if node.operation == Operation::Fetch { Side::Cpu } else { node.side };
        let mut moves = Vec::new();
        for &value in &uses.reads {
            if let Some((_, at)) = self.0.iter_mut().find(|(v, _)| *v == value)
                && !at.contains(&to)
            {
                at.push(to);
                moves.push(Move { value, to });
            }
        }
        if node.operation == Operation::Fetch {
            return moves;
        }
        for &value in &uses.writes {
            // an oracle looks at its gates on the host
            let oracle = value == Value::Marks && uses.writes.contains(&Value::Gates);
            if oracle {
                moves.push(Move { value: Value::Gates, to: Side::Cpu });
            }
            let at = vec![if oracle { Side::Cpu } else { node.side }];
            match self.0.iter_mut().find(|(v, _)| *v == value) {
                Some(place) => place.1 = at,
                None => self.0.push((value, at)),
            }
        }
        moves
    }
}

/// Takes out fetches that fetch nothing; who needed them needs what they needed.
fn without_idle(nodes: Vec<Node>) -> Vec<Node> {
    let idle: Vec<bool> = nodes.iter().map(|n| n.operation == Operation::Fetch && n.moves.is_empty()).collect();
    let place: Vec<usize> = idle
        .iter()
        .scan(0, |next, idle| {
            let place = *next;
            *next += usize::from(!idle);
            Some(place)
        })
        .collect();
    let old: Vec<Vec<usize>> = nodes.iter().map(|n| n.needs.clone()).collect();
    let kept = nodes.into_iter().zip(&idle).filter(|(_, idle)| !**idle);
    kept.map(|(mut node, _)| {
        let all = node.needs.iter().flat_map(|&n| if idle[n] { old[n].clone() } else { vec![n] });
        let mut needs: Vec<usize> = all.map(|n| place[n]).collect();
        needs.sort_unstable();
        needs.dedup();
        node.needs = needs;
        node
    })
    .collect()
}
