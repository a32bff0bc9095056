// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"fmt"
	"strings"
	"time"
)

// The picture, in units of SVG: the axes and what is between them.
const (
	plotWidth, plotHeight = 760, 320
	plotLeft, plotRight   = 60, 740
	plotTop, plotBottom   = 40, 270
)

// plot draws the samples over time.
func (m *memoryRun) plot() string {
	last := m.samples[len(m.samples)-1].at
	most := m.limit * 21 / 20
	x := func(at time.Duration) float64 {
		return plotLeft + float64(plotRight-plotLeft)*float64(at)/float64(last)
	}
	y := func(size int64) float64 {
		return plotBottom - float64(plotBottom-plotTop)*float64(size)/float64(most)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12" fill="#333">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, "<title>Memory of node-cache under a flood of random names</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#f6e3df"/>`+"\n", x(m.dead), plotTop, x(m.back)-x(m.dead), plotBottom-plotTop)
	fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" fill="#e2efe3"/>`+"\n", x(m.back), plotTop, x(last)-x(m.back), plotBottom-plotTop)
	fmt.Fprintf(&b, `<text x="%.1f" y="%d">upstream silent</text><text x="%.1f" y="%d">upstream back</text>`+"\n", x(m.dead)+6, plotBottom-8, x(m.back)+6, plotBottom-8)
	for v := int64(0); v <= most; v += 16 * mib {
		fmt.Fprintf(&b, `<path d="M%d %.1fH%d" stroke="#ccc" stroke-width=".5"/><text x="%d" y="%.1f" text-anchor="end">%d</text>`+"\n",
			plotLeft, y(v), plotRight, plotLeft-6, y(v)+4, v/mib)
	}
	step := gap(last)
	for at := time.Duration(0); at <= last; at += step {
		fmt.Fprintf(&b, `<path d="M%.1f %dv5" stroke="#333"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n",
			x(at), plotBottom, x(at), plotBottom+18, clock(at))
	}
	fmt.Fprintf(&b, `<path d="M%d %dV%dH%d" fill="none" stroke="#333"/>`+"\n", plotLeft, plotTop, plotBottom, plotRight)
	fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle">time, min:s</text>`+"\n", (plotLeft+plotRight)/2, plotHeight-10)
	fmt.Fprintf(&b, `<text transform="translate(16 %d) rotate(-90)" text-anchor="middle">memory, MiB</text>`+"\n", (plotTop+plotBottom)/2)
	lines := []struct {
		name, colour, dashes string
		value                func(sample) int64
	}{
		{"limit of the cgroup", "#b3261e", "6 4", func(sample) int64 { return m.limit }},
		{"cgroup's usage, page cache and kernel included", "#8a6d1b", "none", func(s sample) int64 { return s.usage }},
		{"resident memory", "#1f5fa8", "none", func(s sample) int64 { return s.rss }},
	}
	for i, l := range lines {
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.5" stroke-dasharray="%s" points="`, l.colour, l.dashes)
		for _, s := range thin(m.samples) {
			fmt.Fprintf(&b, "%.1f,%.1f ", x(s.at), y(l.value(s)))
		}
		left := plotLeft + []int{0, 160, 480}[i]
		fmt.Fprintf(&b, "\"/>\n"+`<path d="M%d 22h22" stroke="%s" stroke-width="2" stroke-dasharray="%s"/><text x="%d" y="26">%s</text>`+"\n", left, l.colour, l.dashes, left+28, l.name)
	}
	return b.String() + "</svg>\n"
}

// thin leaves out samples that the picture has no room for.
func thin(all []sample) (some []sample) {
	every := 1 + len(all)/340
	for i, s := range all {
		if i%every == 0 || i == len(all)-1 {
			some = append(some, s)
		}
	}
	return some
}

// gap is how far the marks of the time axis are apart.
func gap(last time.Duration) time.Duration {
	for _, g := range []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second} {
		if last/g <= 12 {
			return g
		}
	}
	return time.Minute
}

// clock is a time as minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}
