package graph

import (
	"cmp"
	"math"
	"slices"

	"cleat/network/survey"
)

// Distances in pixels.
const (
	margin    = 16.0
	framePad  = 12.0
	between   = 14.0 // boxes of one column
	laneApart = 8.0  // wires side by side
	gutterPad = 12.0 // between wires and boxes
	titleRoom = 64.0 // above everything
)

// layout is a picture with everything in its place.
type layout struct {
	*view
	columns  int
	boxWidth float64
	boxes    []*box
	wires    []wire
	host     *survey.Namespace // nil: it is not drawn
	hostHead *box              // its title, as lines
	frame    struct{ x, y, w, h float64 }
	w, h     float64
	foot     []line
	footY    float64

	tracks map[int]int    // of a wire that has one: which
	lanes  map[laneOf]int // which lane a wire has in a column's gutter
	gutter []int          // how many lanes each has
	trackY [bands]float64 // where the first track above a band is
	left   []float64      // where the gutter of each column begins
}

type laneOf struct{ wire, column int }

// newLayout places everything in that many columns.
func newLayout(v *view, full []*survey.Namespace, columns int, boxWidth float64) *layout {
	l := &layout{view: v, columns: columns, boxWidth: boxWidth, tracks: map[int]int{}, lanes: map[laneOf]int{}}
	for _, n := range full {
		if isHost(n) && l.host == nil {
			l.host = n
			l.boxes = append(l.boxes, hostBoxes(v, n, boxWidth)...)
		}
	}
	for _, n := range v.nearFirst(full) {
		if n != l.host {
			l.boxes = append(l.boxes, namespaceBox(v, n, boxWidth))
		}
	}
	slices.SortStableFunc(l.boxes, func(a, b *box) int { return cmp.Compare(a.band, b.band) })
	for i, b := range l.boxes {
		b.order, b.h = i, b.height()
	}
	heights := l.fill()
	l.wires = v.wires(l.boxes)
	l.chooseTracks()
	l.placeRows(heights)
	l.chooseLanes()
	l.placeColumns()
	return l
}

// nearFirst orders namespaces by how many wires they are away from the host, and
// then by what they are wired to: what belongs together is drawn together.
func (v *view) nearFirst(full []*survey.Namespace) []*survey.Namespace {
	near := map[uint64]map[uint64]key{} // of two namespaces: the wire's hub
	note := func(a, b uint64, hub key) {
		if near[a] == nil {
			near[a] = map[uint64]key{}
		}
		if old, ok := near[a][b]; !ok || before(hub, old) {
			near[a][b] = hub
		}
	}
	for _, e := range v.edges() {
		note(e.a.ns, e.b.ns, e.hub)
		note(e.b.ns, e.a.ns, e.hub)
	}
	var out []*survey.Namespace
	seen := map[uint64]bool{}
	for _, first := range full {
		if seen[first.ID] {
			continue
		}
		seen[first.ID] = true
		out = append(out, first)
		for i := len(out) - 1; i < len(out); i++ {
			hubs := near[out[i].ID]
			var next []*survey.Namespace
			for _, m := range full {
				if _, ok := hubs[m.ID]; ok && !seen[m.ID] {
					seen[m.ID] = true
					next = append(next, m)
				}
			}
			slices.SortStableFunc(next, func(a, b *survey.Namespace) int { return compareKeys(hubs[a.ID], hubs[b.ID]) })
			out = append(out, next...)
		}
	}
	return out
}

// fill puts each box into the column that is shortest so far, band by band, with y
// from the band's top, and returns the bands' heights.
func (l *layout) fill() (heights [bands]float64) {
	for band := range bands {
		ends := make([]float64, l.columns)
		for _, b := range l.boxes {
			if b.band != band {
				continue
			}
			b.col = slices.Index(ends, slices.Min(ends))
			b.y = ends[b.col]
			ends[b.col] += b.h + between
		}
		heights[band] = max(0, slices.Max(ends)-between)
	}
	return heights
}

// channel is the band above which the wire's track is; ok is false for a wire in
// one column, which needs none.
func (w wire) channel() (band int, ok bool) {
	band = trunks
	for _, p := range w.ports {
		ok = ok || p.box.col != w.ports[0].box.col
		if p.box.band == containers {
			band = containers
		}
	}
	return band, ok
}

// spans are the first and the last column that a wire has ports in.
func (w wire) spans() (from, to int) {
	from, to = math.MaxInt, 0
	for _, p := range w.ports {
		from, to = min(from, p.box.col), max(to, p.box.col)
	}
	return from, to
}

// chooseTracks gives wires that share a column in one channel different tracks.
func (l *layout) chooseTracks() {
	used := [bands][][]bool{}
	for i, w := range l.wires {
		band, ok := w.channel()
		if !ok {
			continue
		}
		from, to := w.spans()
		track := 0
		for ; track < len(used[band]) && slices.Contains(used[band][track][from:to+1], true); track++ {
		}
		if track == len(used[band]) {
			used[band] = append(used[band], make([]bool, l.columns))
		}
		for c := from; c <= to; c++ {
			used[band][track][c] = true
		}
		l.tracks[i] = track
	}
	for band := range bands {
		l.trackY[band] = float64(len(used[band])) * laneApart // for now the channel's height
	}
}

// placeRows gives everything its y.
func (l *layout) placeRows(heights [bands]float64) {
	y := titleRoom
	if l.host != nil {
		l.frame.y = y
		l.hostHead = newHostHead(l)
		y += l.hostHead.height()
	}
	var top [bands]float64
	for band := range bands {
		channel := l.trackY[band]
		if band == containers && l.host != nil {
			if heights[uplinks]+heights[trunks] > 0 {
				y += framePad
			}
			l.frame.h = y - l.frame.y
			y += between
		}
		if channel > 0 {
			l.trackY[band] = y + laneApart
			y += channel + laneApart*2
		}
		top[band] = y
		if heights[band] > 0 {
			y += heights[band]
			if band == uplinks && heights[trunks] > 0 {
				y += between
			}
		}
	}
	for _, b := range l.boxes {
		b.y += top[b.band]
	}
	l.footY = y + margin
}

// newHostHead is the host's title.
func newHostHead(l *layout) *box {
	width := float64(l.columns) * (l.boxWidth + gutterPad*2)
	w := newBox(l.view, uplinks, width)
	w.one(classTitle, l.host.Label, 0, false)
	w.flow(classSoft, l.about(l.host), 0, mostLines)
	for _, d := range defaults(l.host) {
		w.one(classSoft, d, 0, false)
	}
	return w.box
}

// lane is where a wire runs in a gutter.
type lane struct {
	of       laneOf
	from, to float64
}

// interval is the part of a wire that runs in a column's gutter.
func (l *layout) interval(i, column int) (lane, bool) {
	w := l.wires[i]
	out := lane{of: laneOf{i, column}, from: math.Inf(1), to: math.Inf(-1)}
	found := false
	for _, p := range w.ports {
		if p.box.col == column {
			found = true
			out.from, out.to = min(out.from, p.y()), max(out.to, p.y())
		}
	}
	if y, ok := l.track(i); ok && found {
		out.from, out.to = min(out.from, y), max(out.to, y)
	}
	return out, found
}

// track is the y of a wire's track, if it has one.
func (l *layout) track(i int) (float64, bool) {
	track, ok := l.tracks[i]
	if !ok {
		return 0, false
	}
	band, _ := l.wires[i].channel()
	return l.trackY[band] + float64(track)*laneApart, true
}

// chooseLanes gives wires that would touch in a gutter different lanes.
func (l *layout) chooseLanes() {
	l.gutter = make([]int, l.columns)
	for column := range l.columns {
		var all []lane
		for i := range l.wires {
			if one, ok := l.interval(i, column); ok {
				all = append(all, one)
			}
		}
		slices.SortStableFunc(all, func(a, b lane) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
		var ends []float64
		for _, one := range all {
			at := slices.IndexFunc(ends, func(end float64) bool { return end+laneApart < one.from })
			if at < 0 {
				at, ends = len(ends), append(ends, 0)
			}
			ends[at] = one.to
			l.lanes[one.of] = at
		}
		l.gutter[column] = len(ends)
	}
}

// placeColumns gives everything its x.
func (l *layout) placeColumns() {
	x := margin
	if l.host != nil {
		l.frame.x = x
		x += framePad / 2
	}
	l.left = make([]float64, l.columns)
	boxX := make([]float64, l.columns)
	for c := range l.columns {
		l.left[c] = x
		x += gutterPad
		if l.gutter[c] > 0 {
			x += float64(l.gutter[c]-1)*laneApart + gutterPad
		}
		boxX[c] = x
		x += l.boxWidth
	}
	for _, b := range l.boxes {
		b.x = boxX[b.col]
	}
	if l.host != nil {
		x += framePad
		l.frame.w = x - l.frame.x
		l.hostHead.x, l.hostHead.y = l.frame.x+framePad-boxPad, l.frame.y
	}
	l.w = x + margin
}

// laneX is where a wire runs in a column's gutter.
func (l *layout) laneX(wire, column int) float64 {
	return l.left[column] + gutterPad + float64(l.lanes[laneOf{wire, column}])*laneApart
}
