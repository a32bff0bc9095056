// SPDX-License-Identifier: Apache-2.0

package nodetest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A Report is what a [Meter] has recorded.
type Report struct {
	Outcomes []Outcome // in the order of sending
}

// Between returns the part of the report that was sent in [from, to).
func (r Report) Between(from, to time.Time) Report {
	var part Report
	for _, o := range r.Outcomes {
		if !o.Sent.Before(from) && o.Sent.Before(to) {
			part.Outcomes = append(part.Outcomes, o)
		}
	}
	return part
}

// Within returns the report with the late answers that took no longer than a limit as answers.
func (r Report) Within(limit time.Duration) Report {
	r.Outcomes = slices.Clone(r.Outcomes)
	for i := range r.Outcomes {
		if o := &r.Outcomes[i]; o.Result == Late && o.Took <= limit {
			o.Result = Answered
		}
	}
	return r
}

// Of returns the part of the report that one client sent.
func (r Report) Of(load int) Report {
	var part Report
	for _, o := range r.Outcomes {
		if o.Load == load {
			part.Outcomes = append(part.Outcomes, o)
		}
	}
	return part
}

// Sent returns the number of queries sent.
func (r Report) Sent() int { return len(r.Outcomes) }

// Lost returns the number of queries without an answer, for any reason.
func (r Report) Lost() int { return r.Sent() - r.Count(Answered) }

// Count returns the number of queries with a result.
func (r Report) Count(result Result) int {
	n := 0
	for _, o := range r.Outcomes {
		if o.Result == result {
			n++
		}
	}
	return n
}

// By counts the answered queries by server.
func (r Report) By() map[string]int {
	by := map[string]int{}
	for _, o := range r.Outcomes {
		if o.Result == Answered {
			by[o.Who]++
		}
	}
	return by
}

// FirstBy returns when a server first answered a query that was sent at or after a time.
func (r Report) FirstBy(who string, after time.Time) (at time.Time, ok bool) {
	for _, o := range r.Outcomes {
		if o.Result == Answered && o.Who == who && !o.Sent.Before(after) {
			if came := o.Sent.Add(o.Took); !ok || came.Before(at) {
				at, ok = came, true
			}
		}
	}
	return at, ok
}

// FirstLost returns when the first unanswered query was sent.
func (r Report) FirstLost() (at time.Time, ok bool) {
	for _, o := range r.Outcomes {
		if o.Result != Answered {
			return o.Sent, true
		}
	}
	return at, false
}

// LastLost returns when the last unanswered query was sent.
func (r Report) LastLost() (at time.Time, ok bool) {
	for _, o := range slices.Backward(r.Outcomes) {
		if o.Result != Answered {
			return o.Sent, true
		}
	}
	return at, false
}

// LongestGap returns the longest time in which no query sent was answered: from the first such query to the next that
// was answered, or to the last query.
func (r Report) LongestGap() time.Duration {
	var longest time.Duration
	var began time.Time
	for _, o := range r.Outcomes {
		if o.Result != Answered && began.IsZero() {
			began = o.Sent
		}
		if !began.IsZero() {
			longest = max(longest, o.Sent.Sub(began))
		}
		if o.Result == Answered {
			began = time.Time{}
		}
	}
	return longest
}

// String summarizes the report: "12 of 25,000 lost: 10 refused, 2 lost; answered by agent 20,000, central 4,988".
func (r Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s of %s lost", Thousands(r.Lost()), Thousands(r.Sent()))
	separator := ": "
	for _, result := range []Result{Lost, Late, Refused, Reset, Failed} {
		if n := r.Count(result); n > 0 {
			fmt.Fprintf(&b, "%s%s %s", separator, Thousands(n), result)
			separator = ", "
		}
	}
	by := r.By()
	separator = "; answered by "
	for _, who := range slices.Sorted(maps.Keys(by)) {
		fmt.Fprintf(&b, "%s%s %s", separator, who, Thousands(by[who]))
		separator = ", "
	}
	return b.String()
}

// Thousands formats a number with commas.
func Thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
