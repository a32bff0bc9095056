// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// configVariants are the configurations that the reload test swaps in: good ones that change what a reload can change,
// with a broken one behind each.
func configVariants(s settings, nsd, other string) []string {
	with := func(to []string, more string) string {
		v := s
		v.to, v.more = to, more
		return v.yaml()
	}
	return []string{
		with([]string{nsd}, "cache: {size: 32Mi, minTTL: 2s}"),
		"listen: {addresses: [127.0.0.1",
		with([]string{other, nsd}, "limits: {inflight: 2048, deadline: 3s}"),
		with([]string{nsd}, "cache: {sise: 32Mi}"),
		with([]string{"tcp://" + nsd}, "cache: {size: 64Mi, prefetch: {hits: 0}}"),
		with([]string{"nowhere"}, "cache: {size: 0}"),
		with([]string{nsd, other}, "log: {level: warn}"),
		strings.Repeat("\x00", 4096),
	}
}

// swapConfigs replaces the configuration every second until stop is closed, by turns with a rename and in place. It
// returns how many good and how many broken files it wrote.
func swapConfigs(t *testing.T, a *agent, texts []string, stop <-chan struct{}) (good, broken int) {
	t.Helper()
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for i := 0; ; i++ {
		select {
		case <-stop:
			return good, broken
		case <-ticker.C:
		}
		text := texts[i%len(texts)]
		var err error
		if i/len(texts)%2 == 0 {
			if err = os.WriteFile(a.config+".new", []byte(text), 0o644); err == nil {
				err = os.Rename(a.config+".new", a.config)
			}
		} else {
			err = os.WriteFile(a.config, []byte(text), 0o644)
		}
		if err != nil {
			t.Errorf("writing the configuration: %v", err)
		}
		if i%2 == 0 {
			good++
		} else {
			broken++
		}
	}
}

// watchAnswers asks for names with known answers, one from the cache and one from upstream, until stop is closed.
// It returns the number of queries and what was wrong.
func watchAnswers(a *agent, stop <-chan struct{}) (asked int, problems []string) {
	client := dns.Client{Timeout: 5 * time.Second}
	for ; ; asked++ {
		select {
		case <-stop:
			return asked, problems
		case <-time.After(20 * time.Millisecond):
		}
		name, want := "host.e2e.test.", "192.0.2.10"
		if asked%2 == 1 {
			name, want = fmt.Sprintf("watch%d.wild.e2e.test.", asked), "192.0.2.99"
		}
		r, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), a.addr)
		switch {
		case err != nil:
			problems = append(problems, fmt.Sprintf("%s: %v", name, err))
		case len(r.Answer) != 1 || r.Answer[0].(*dns.A).A.String() != want:
			problems = append(problems, fmt.Sprintf("%s: %s %v, want %s", name, dns.RcodeToString[r.Rcode], r.Answer, want))
		}
	}
}

// TestReloadUnderLoad runs dnsperf at full load twice, first with the configuration left alone, then with it
// swapped every second between good and broken files. The reloads lose no query.
func TestReloadUnderLoad(t *testing.T) {
	length := proctest.OrdinaryOrSoak(10*time.Second, time.Minute)
	proctest.FindProgram(t, "dnsperf", "dnsperf")
	nsd, other := startNSD(t), startNSD(t)
	a := startAgent(t, settings{to: []string{nsd.addr}})
	names := mixedNames(t)
	before, servedBefore := a.reloads(t), a.queries(t)

	plain := dnsperf(t, a.addr, names, length)

	stop, swapped, watched := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var good, broken, asked int
	var problems []string
	texts := configVariants(a.settings, nsd.addr, other.addr)
	go func() {
		defer close(swapped)
		good, broken = swapConfigs(t, a, texts, stop)
	}()
	go func() {
		defer close(watched)
		asked, problems = watchAnswers(a, stop)
	}()
	reloading := dnsperf(t, a.addr, names, length)
	close(stop)
	<-swapped
	<-watched

	t.Attr("plain", plain.String())
	t.Attr("reloading", fmt.Sprintf("%s, with %d good and %d broken files", reloading, good, broken))
	if reloading.lost > plain.lost || plain.completed == 0 || reloading.completed == 0 {
		t.Errorf("lost %d queries with reloads and %d without, want no more", reloading.lost, plain.lost)
	}
	for what, l := range map[string]load{"without": plain, "with": reloading} {
		if !strings.HasPrefix(l.codes, "NOERROR ") || !strings.HasSuffix(l.codes, "(100.00%)") {
			t.Errorf("response codes %s reloads: %s, want NOERROR only", what, l.codes)
		}
	}
	if asked < int(length.Seconds()) || len(problems) > 0 {
		t.Errorf("%d answers watched meanwhile, wrong: %q", asked, problems)
	}
	// What dnsperf counts is believed only where the agent counted it too.
	if served := a.queries(t) - servedBefore; served < plain.completed+reloading.completed {
		t.Errorf("the agent counted %d queries, dnsperf %d + %d answers", served, plain.completed, reloading.completed)
	}
	// A file is read some moments after it was written, so the last one may not be counted yet.
	after := a.reloads(t)
	if got := after.generation - before.generation; got < good-1 || got > good {
		t.Errorf("the generation advanced by %d, want by the %d good files", got, good)
	}
	if got := after.refused - before.refused; got < broken-1 {
		t.Errorf("%d files were refused, want the %d broken ones", got, broken)
	}
}

// reloads is what /status says of the configuration: each file put to work is a generation.
type reloads struct{ generation, refused int }

func (a *agent) reloads(t *testing.T) reloads {
	t.Helper()
	return reloads{generation: a.statusNumber(t, "config", "generation"), refused: a.statusNumber(t, "config", "refused")}
}

// queries is the number of queries that the agent has counted.
func (a *agent) queries(t *testing.T) int {
	t.Helper()
	return a.statusNumber(t, "queries", "total")
}
