// SPDX-License-Identifier: Apache-2.0

package main

import (
	"reflect"
	"testing"
)

func TestTracesAreTheSameEveryTime(t *testing.T) {
	t.Parallel()
	for name, build := range map[string]func() *trace{
		"zipf":   func() *trace { return zipfTrace(5000, 1000) },
		"search": func() *trace { return searchTrace(5000) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if first, second := build(), build(); !reflect.DeepEqual(first, second) {
				t.Error("two traces from one seed differ")
			}
		})
	}
}

func TestZipfTrace(t *testing.T) {
	t.Parallel()
	const queries, names = 300_000, 1000
	tr := zipfTrace(queries, names)
	counts := make([]int, names)
	for _, id := range tr.ids {
		counts[id]++
	}
	most, sum := 0, 0
	for id, n := range counts {
		most = max(most, n)
		sum += int(tr.sizes[id])
		if tr.sizes[id] < leastSize || tr.sizes[id] > mostSize {
			t.Errorf("id %d has %d bytes, want %d to %d", id, tr.sizes[id], leastSize, mostSize)
		}
		if tr.ttls[id] < 30 || tr.ttls[id] > 3600 {
			t.Errorf("id %d has a TTL of %d s, want 30 to 3600", id, tr.ttls[id])
		}
	}
	within(t, "part of the first rank", float64(most)/queries, 1/7.485, 0.01) // the 1000th harmonic number
	within(t, "mean size", float64(sum)/names, 198, 7)
}

func TestSearchTrace(t *testing.T) {
	t.Parallel()
	const queries = 300_000
	tr := searchTrace(queries)
	if len(tr.ids) != queries {
		t.Fatalf("%d questions, want %d", len(tr.ids), queries)
	}
	denied, short := 0, 0
	for _, id := range tr.ids {
		if tr.ttls[id] == denialTTL && tr.sizes[id] >= 168 && tr.sizes[id] <= 228 {
			denied++
		}
		if tr.ttls[id] < denialTTL {
			short++
		}
	}
	// 35 of 100 lookups have 8 denials in 10 questions, 48 and 17 have 2 questions: 280 of 480 are denied.
	within(t, "denied", float64(tr.denied)/queries, 280.0/480, 0.01)
	if denied < tr.denied {
		t.Errorf("%d questions look like denials, want %d or more", denied, tr.denied)
	}
	// A service's TTL is 5 to 30 s, each as likely.
	within(t, "service names below 30 s", float64(short)/queries, 34.0/480*25/26, 0.01)
}

func TestOneQuestionInFiveIsAWonder(t *testing.T) {
	t.Parallel()
	tr := searchTrace(300_000)
	asked := make([]int, len(tr.sizes))
	for _, id := range tr.ids {
		asked[id]++
	}
	once := 0
	for id, n := range asked {
		// Denials that happened to be asked once are many, and have their own TTL.
		if n == 1 && tr.ttls[id] > denialTTL {
			once++
		}
	}
	// One in fourteen wonders has the denials' TTL and is not counted. External names that nobody asked for again yet
	// are: fewer than three in a hundred questions.
	within(t, "asked once", float64(once)/300_000, 0.2*13/14+0.015, 0.02)
}

func TestFacts(t *testing.T) {
	t.Parallel()
	tr := &trace{
		ids:   make([]uint32, 3*rate), // id 0 all the time
		sizes: []uint16{100, 200, 300},
		ttls:  []uint16{1, 1, 3600},
	}
	tr.ids[1], tr.ids[rate+1], tr.ids[2*rate+1] = 1, 2, 1
	tr.link()
	// In the second second 0 and 2 are fresh, in the third 1 as well.
	want := facts{asked: 3 * rate, different: 3, bytes: 600, peak: 600}
	if got := tr.facts(); got != want {
		t.Errorf("facts\n-want %+v\n+got  %+v", want, got)
	}
	if got, want := tr.query(1).next, int32(2*rate+1); got != want {
		t.Errorf("next of question 1: %d, want %d", got, want)
	}
	if got := tr.query(rate + 1).next; got != never {
		t.Errorf("next of the only question for 2: %d, want never", got)
	}
}

func within(t *testing.T, what string, got, want, tolerance float64) {
	t.Helper()
	if got < want-tolerance || got > want+tolerance {
		t.Errorf("%s: %.4f, want %.4f ± %.4f", what, got, want, tolerance)
	}
}
