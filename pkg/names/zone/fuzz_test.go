// SPDX-License-Identifier: Apache-2.0

package zone_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/names/zone"
	"github.com/nodecache/node-cache/pkg/wire"
)

// fuzzHarness returns a harness after many operations.
func fuzzHarness(tb testing.TB) *harness {
	tb.Helper()
	w := newProcess(tb, 1, zone.Config{TTL: 5 * time.Second, Pods: zone.PodsInsecure, PodNames: true, NodeZone: "east"})
	for range 300 {
		w.step()
	}
	freshen(w.store, w.now)
	freshen(w.set.store, w.now)
	return w
}

func FuzzAnswer(f *testing.F) {
	for i, name := range processQuestions() {
		if i%97 == 0 || strings.Contains(name, "arpa") {
			buf := make([]byte, 256)
			n, err := dns.PackDomainName(name, buf, 0, nil, false)
			assert.NoError(f, err)
			f.Add(buf[:n], dns.TypeA)
			f.Add(buf[:n], dns.TypeSRV)
			f.Add(buf[:n], dns.TypePTR)
		}
	}
	w := fuzzHarness(f)
	f.Fuzz(func(t *testing.T, name []byte, rrtype uint16) {
		pkt := append([]byte{0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}, name...)
		pkt = append(pkt, byte(rrtype>>8), byte(rrtype), 0, 1)
		var q wire.Query
		if q.Parse(pkt) != wire.RcodeSuccess || len(q.Name()) != len(name) {
			return // no name
		}
		have := askZones(t, w.zones(), pkt, 3, w.now)
		text, _, err := dns.UnpackDomainName(q.Name(), 0)
		if err != nil {
			t.Fatalf("name %x: %v", name, err)
		}
		want := w.model.answer(text, rrtype)
		if w.model.shared(text) && len(have.Answer) == 1 {
			want.Answer = have.Answer
		}
		assert.Same(t, fmt.Sprintf("%s %d", text, rrtype), normal(want), normal(have))
	})
}

func FuzzStore(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed, uint8(40))
	}
	list := processQuestions()
	f.Fuzz(func(t *testing.T, seed uint64, steps uint8) {
		w := newProcess(t, seed, zone.Config{TTL: 5 * time.Second, Pods: zone.PodMode(seed % 3), PodNames: seed%2 == 0})
		for range steps {
			w.step()
		}
		freshen(w.store, w.now)
		freshen(w.set.store, w.now)
		types := []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME}
		for range 200 {
			w.compareOne(int(steps), pick(w, list), pick(w, types))
		}
		for _, name := range federatedQuestions() {
			w.compareOne(int(steps), name, pick(w, types))
		}
	})
}
