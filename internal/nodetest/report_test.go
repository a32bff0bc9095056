// SPDX-License-Identifier: Apache-2.0

package nodetest_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/nodetest"
)

func TestReport(t *testing.T) {
	t.Parallel()
	start := time.Unix(1000, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	by := func(ms int, who string) nodetest.Outcome {
		return nodetest.Outcome{Sent: at(ms), Took: 2 * time.Millisecond, Result: nodetest.Answered, Who: who}
	}
	no := func(ms int, r nodetest.Result) nodetest.Outcome { return nodetest.Outcome{Sent: at(ms), Result: r} }
	r := nodetest.Report{}
	for range 1000 {
		r.Outcomes = append(r.Outcomes, by(0, "agent"))
	}
	r.Outcomes = append(r.Outcomes, no(10, nodetest.Refused), by(20, "agent"), no(30, nodetest.Lost), no(40, nodetest.Reset),
		by(70, "central"), by(80, "agent"), no(100, nodetest.Failed))
	type figures struct {
		Sent, Lost     int
		By             map[string]int
		Gap            time.Duration
		Central, Later time.Time
		LastLost       time.Time
		Text           string
	}
	got := figures{Sent: r.Sent(), Lost: r.Lost(), By: r.By(), Gap: r.LongestGap(), Text: r.String()}
	got.Central, _ = r.FirstBy("central", start)
	got.Later, _ = r.FirstBy("agent", at(21))
	got.LastLost, _ = r.Between(start, at(100)).LastLost()
	want := figures{
		Sent: 1007, Lost: 4, By: map[string]int{"agent": 1002, "central": 1}, Gap: 40 * time.Millisecond,
		Central: at(72), Later: at(82), LastLost: at(40),
		Text: "4 of 1,007 lost: 1 lost, 1 refused, 1 reset, 1 failed; answered by agent 1,002, central 1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if _, ok := r.FirstBy("central", at(71)); ok {
		t.Error("central answered after its only answer")
	}
}
