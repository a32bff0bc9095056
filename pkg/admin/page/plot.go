// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// The area of a plot within the SVG, whose size the template has.
const (
	left, right   = 40.0, 316.0
	upper, bottom = 8.0, 84.0
)

// A plot is one drawing.
type plot struct {
	Title string
	Lines []line
	Ticks []tick
}

// A line is one series.
type line struct {
	Name             string
	Now, Least, Most string // the latest, the smallest and the largest value; empty: there was none
	Path             string // data of an SVG path
}

// A tick is a value of the vertical axis.
type tick struct {
	Y    float64
	Text string
}

// An axis places values.
type axis struct {
	text  func(float64) string
	place func(float64) float64 // 0 is the bottom, 1 the top
	ticks []float64
}

// plots draws the points of the window that ends now.
func plots(points []sample, now time.Time) []plot {
	queries, bad := 1.0, 1.0
	for i := range points {
		queries = max(queries, points[i].queryRate())
		bad = max(bad, points[i].failureRate(), points[i].staleRate())
	}
	ratio := axis{percent, func(v float64) float64 { return v }, []float64{0, 0.5, 1}}
	rate, badRate := rateAxis(queries), rateAxis(bad)
	// From 10 µs to 10 s, logarithmic: hits and misses differ by three orders of magnitude.
	latency := axis{duration, func(v float64) float64 { return min(max((math.Log10(v)+5)/6, 0), 1) }, []float64{1e-5, 1e-3, 1e-1, 10}}
	return []plot{
		ratio.plot("Hit ratio", ratio.line("hits", points, now, (*sample).hitRatio)),
		rate.plot("Queries per second", rate.line("queries", points, now, (*sample).queryRate)),
		badRate.plot("Failures per second", badRate.line("stale", points, now, (*sample).staleRate), badRate.line("SERVFAIL", points, now, (*sample).failureRate)),
		latency.plot("Latency, p99", latency.line("hits", points, now, (*sample).hitP99), latency.line("misses", points, now, (*sample).missP99)),
	}
}

// rateAxis is the axis of a rate of at most that many per second.
func rateAxis(most float64) axis {
	most = roundUp(most)
	return axis{number, func(v float64) float64 { return v / most }, []float64{0, most / 2, most}}
}

func (a *axis) plot(title string, lines ...line) plot {
	p := plot{Title: title, Lines: lines}
	for _, v := range a.ticks {
		p.Ticks = append(p.Ticks, tick{a.y(v), a.text(v)})
	}
	return p
}

func (a *axis) y(v float64) float64 { return bottom - a.place(v)*(bottom-upper) }

// line draws one value of each point. It has a gap where a point has no such value.
func (a *axis) line(name string, points []sample, now time.Time, value func(*sample) float64) line {
	l, path, gap := line{Name: name}, strings.Builder{}, true
	least, most, last := math.Inf(1), math.Inf(-1), math.NaN()
	for i := range points {
		v, age := value(&points[i]), now.Sub(points[i].at)
		if math.IsNaN(v) || age > window {
			gap = true
			continue
		}
		command := "L"
		if gap {
			command = "M"
		}
		gap = false
		least, most, last = min(least, v), max(most, v), v
		_, _ = fmt.Fprintf(&path, "%s%.1f %.1f", command, right-age.Seconds()/window.Seconds()*(right-left), a.y(v))
	}
	if path.Len() > 0 {
		l.Path, l.Now, l.Least, l.Most = path.String(), a.text(last), a.text(least), a.text(most)
	}
	return l
}

// roundUp returns the next of 1, 2, 5, 10, 20, …
func roundUp(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5} {
		if v <= n*unit {
			return n * unit
		}
	}
	return 10 * unit
}
