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
	boxGap    = 14.0 // between boxes of one column
	laneApart = 8.0  // between wires side by side
	gutterPad = 12.0 // between wires and boxes
	titleRoom = 64.0 // above everything
)

// layout is a picture with the positions of everything.
type layout struct {
	*view
	columns  int
	boxWidth float64
	boxes    []*box
	wires    []wire
	host     *survey.Namespace // nil if it is not drawn
	hostHead *box              // its title lines
	frame    struct{ x, y, w, h float64 }
	w, h     float64
	footer   []line
	footY    float64

	tracks map[int]int    // track number of each wire that has one
	lanes  map[laneID]int // lane number of a wire in a column's gutter
	gutter []int          // number of lanes in each
	trackY [rows]float64  // y of the first track above each row
	left   []float64      // x of each column's gutter
}

type laneID struct{ wire, column int }

// newLayout computes the positions for a number of columns.
func newLayout(v *view, full []*survey.Namespace, columns int, boxWidth float64) *layout {
	l := &layout{view: v, columns: columns, boxWidth: boxWidth, tracks: map[int]int{}, lanes: map[laneID]int{}}
	for _, n := range full {
		if isHost(n) && l.host == nil {
			l.host = n
			l.boxes = append(l.boxes, hostBoxes(v, n, boxWidth)...)
		}
	}
	for _, n := range v.byDistance(full) {
		if n != l.host {
			l.boxes = append(l.boxes, namespaceBox(v, n, boxWidth))
		}
	}
	networks := map[linkID][]*box{} // by hub
	for _, net := range v.NetworksOf(v.opt.Only) {
		b := networkBox(v, net, boxWidth)
		l.boxes = append(l.boxes, b)
		if hub, ok := v.hubOf(net); ok {
			networks[hub.key()] = append(networks[hub.key()], b)
		}
	}
	slices.SortStableFunc(l.boxes, func(a, b *box) int { return cmp.Compare(a.row, b.row) })
	for i, b := range l.boxes {
		b.order, b.h = i, b.height()
	}
	heights := l.assignColumns()
	l.wires = v.wires(l.boxes, networks)
	l.chooseTracks()
	l.placeRows(heights)
	l.chooseLanes()
	l.placeColumns()
	return l
}

// byDistance orders namespaces by how many wires they are away from the host, and then by what they
// are wired to, so that what belongs together is drawn together.
func (v *view) byDistance(full []*survey.Namespace) []*survey.Namespace {
	near := map[uint64]map[uint64]linkID{} // hub of the wire between two namespaces
	note := func(a, b uint64, hub linkID) {
		if near[a] == nil {
			near[a] = map[uint64]linkID{}
		}
		if old, ok := near[a][b]; !ok || compareLinks(hub, old) < 0 {
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
			slices.SortStableFunc(next, func(a, b *survey.Namespace) int { return compareLinks(hubs[a.ID], hubs[b.ID]) })
			out = append(out, next...)
		}
	}
	return out
}

// assignColumns puts each box into the column that is shortest so far, row by row. It sets y
// relative to the top of the row, and returns the heights of the rows.
func (l *layout) assignColumns() (heights [rows]float64) {
	for row := range rows {
		ends := make([]float64, l.columns)
		for _, b := range l.boxes {
			if b.row != row {
				continue
			}
			b.col = slices.Index(ends, slices.Min(ends))
			b.y = ends[b.col]
			ends[b.col] += b.h + boxGap
		}
		heights[row] = max(0, slices.Max(ends)-boxGap)
	}
	return heights
}

// channel returns the row above which the wire's track is: the highest row below the host's that it
// has ports in. ok is false for a wire in one column, which needs no track.
func (w wire) channel() (row int, ok bool) {
	lowest := rows
	for _, p := range w.ports {
		ok = ok || p.box.col != w.ports[0].box.col
		if p.box.row >= containerRow {
			lowest = min(lowest, p.box.row)
		}
	}
	if lowest == rows {
		return hostRow, ok
	}
	return lowest, ok
}

// columnRange returns the first and the last column that a wire has ports in.
func (w wire) columnRange() (from, to int) {
	from, to = math.MaxInt, 0
	for _, p := range w.ports {
		from, to = min(from, p.box.col), max(to, p.box.col)
	}
	return from, to
}

// chooseTracks gives wires that share a column in one channel different tracks.
func (l *layout) chooseTracks() {
	used := [rows][][]bool{}
	for i, w := range l.wires {
		row, ok := w.channel()
		if !ok {
			continue
		}
		from, to := w.columnRange()
		track := 0
		for ; track < len(used[row]) && slices.Contains(used[row][track][from:to+1], true); track++ {
		}
		if track == len(used[row]) {
			used[row] = append(used[row], make([]bool, l.columns))
		}
		for c := from; c <= to; c++ {
			used[row][track][c] = true
		}
		l.tracks[i] = track
	}
	for row := range rows {
		l.trackY[row] = float64(len(used[row])) * laneApart // the channel's height for now
	}
}

// placeRows sets the y of everything.
func (l *layout) placeRows(heights [rows]float64) {
	y := titleRoom
	if l.host != nil {
		l.frame.y = y
		l.hostHead = newHostHead(l)
		y += l.hostHead.height()
	}
	var top [rows]float64
	for row := range rows {
		channel := l.trackY[row]
		if row == containerRow && l.host != nil {
			if heights[uplinkRow]+heights[hostRow] > 0 {
				y += framePad
			}
			l.frame.h = y - l.frame.y
			y += boxGap
		}
		if channel > 0 {
			l.trackY[row] = y + laneApart
			y += channel + laneApart*2
		}
		top[row] = y
		if heights[row] > 0 {
			y += heights[row]
			if row == uplinkRow && heights[hostRow] > 0 || row == containerRow && heights[networkRow] > 0 {
				y += boxGap
			}
		}
	}
	for _, b := range l.boxes {
		b.y += top[b.row]
	}
	l.footY = y + margin
}

func newHostHead(l *layout) *box {
	width := float64(l.columns) * (l.boxWidth + gutterPad*2)
	w := newBox(l.view, uplinkRow, width)
	w.addLine(classTitle, l.host.Label, 0, false)
	w.addParagraph(classSoft, l.describeNamespace(l.host), 0, maxLines)
	for _, d := range defaultRoutes(l.host) {
		w.addLine(classSoft, d, 0, false)
	}
	return w.box
}

// lane is the vertical part of a wire in a gutter.
type lane struct {
	id       laneID
	from, to float64
}

// interval returns the lane of a wire in a column's gutter. ok is false if it has none.
func (l *layout) interval(i, column int) (out lane, ok bool) {
	w := l.wires[i]
	out = lane{id: laneID{i, column}, from: math.Inf(1), to: math.Inf(-1)}
	for _, p := range w.ports {
		if p.box.col == column {
			ok = true
			out.from, out.to = min(out.from, p.y()), max(out.to, p.y())
		}
	}
	if y, tracked := l.track(i); ok && tracked {
		out.from, out.to = min(out.from, y), max(out.to, y)
	}
	return out, ok
}

// track returns the y of a wire's track, if it has one.
func (l *layout) track(i int) (float64, bool) {
	track, ok := l.tracks[i]
	if !ok {
		return 0, false
	}
	row, _ := l.wires[i].channel()
	return l.trackY[row] + float64(track)*laneApart, true
}

// chooseLanes gives wires that would touch in a gutter different lanes.
func (l *layout) chooseLanes() {
	l.gutter = make([]int, l.columns)
	for column := range l.columns {
		var all []lane
		for i := range l.wires {
			if in, ok := l.interval(i, column); ok {
				all = append(all, in)
			}
		}
		slices.SortStableFunc(all, func(a, b lane) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
		var ends []float64
		for _, in := range all {
			at := slices.IndexFunc(ends, func(end float64) bool { return end+laneApart < in.from })
			if at < 0 {
				at, ends = len(ends), append(ends, 0)
			}
			ends[at] = in.to
			l.lanes[in.id] = at
		}
		l.gutter[column] = len(ends)
	}
}

// placeColumns sets the x of everything.
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

// laneX returns the x of a wire's lane in a column's gutter.
func (l *layout) laneX(wire, column int) float64 {
	return l.left[column] + gutterPad + float64(l.lanes[laneID{wire, column}])*laneApart
}
