// SPDX-License-Identifier: Apache-2.0

package resolve_test

import (
	"bytes"
	"log/slog"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/time/rate"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
)

// TestWatchers has watchers with one filter each, beside a query log without queries.
func TestWatchers(t *testing.T) {
	t.Parallel()
	u := newUpstream(t, "www.test. 300 IN A 192.0.2.1", "a.sub.test. 300 IN A 192.0.2.1", "xsub.test. 300 IN A 192.0.2.1")
	u.mangle = func(m *dns.Msg) {
		if m.Question[0].Name == "gone.test." {
			m.Rcode = dns.RcodeNameError
		}
	}
	p := plan(t, u)
	p.Watchers, p.Pods = new(resolve.Watchers), pods.NewIndex(time.Minute, nil)
	p.QueryLog = &resolve.QueryLog{Slow: time.Second}
	r := newResolver(t, p)
	pod, other := newClient(r, false), newClient6(r)
	p.Pods.Put(&pods.Pod{Namespace: "shop", Name: "web", Addrs: []netip.Addr{pod.from.Addr.Addr()}})
	admitted, ends := 0, []func(){}
	tests := []struct {
		name   string
		filter resolve.Filter
		want   string
		log    bytes.Buffer
	}{
		{name: "all", want: "www.test. www.test. a.sub.test. xsub.test. gone.test."},
		{name: "of a pod", filter: resolve.Filter{Namespace: "shop", Pod: "web"}, want: "www.test. a.sub.test. gone.test."},
		{name: "of another pod", filter: resolve.Filter{Namespace: "shop", Pod: "we"}},
		{name: "of a namespace", filter: resolve.Filter{Namespace: "shop"}, want: "www.test. a.sub.test. gone.test."},
		{name: "of another namespace", filter: resolve.Filter{Namespace: "sho"}},
		{name: "below a domain", filter: resolve.Filter{Domain: []byte("\x03sub\x04test\x00")}, want: "a.sub.test."},
		{name: "an rcode", filter: resolve.Filter{Rcode: "NXDOMAIN"}, want: "gone.test."},
		{name: "a source", filter: resolve.Filter{Source: "cache"}, want: "www.test."},
	}
	for i := range tests {
		tt := &tests[i]
		tt.filter.Admit = func() bool { return true }
		if i == 0 {
			tt.filter.Admit = func() bool { admitted++; return admitted != 3 }
			tt.want = strings.Replace(tt.want, "a.sub.test. ", "", 1)
		}
		end, ok := p.Watchers.Add(&resolve.QueryLog{All: true, Filter: &tt.filter, TypeName: typeName, Log: slog.New(slog.NewTextHandler(&tt.log, nil))})
		assert.Equal(t, tt.name+": accepted", true, ok)
		ends = append(ends, end)
	}
	_, ok := p.Watchers.Add(&resolve.QueryLog{})
	assert.Equal(t, "a ninth: accepted", false, ok)
	pod.exchange(t, pack(t, question("www.test.", dns.TypeA)))
	other.exchange(t, pack(t, question("WWW.test.", dns.TypeA)))
	pod.exchange(t, pack(t, question("a.sub.test.", dns.TypeA)))
	other.exchange(t, pack(t, question("xsub.test.", dns.TypeA)))
	pod.exchange(t, pack(t, question("gone.test.", dns.TypeA)))
	for _, end := range ends {
		end()
	}
	pod.exchange(t, pack(t, question("late.test.", dns.TypeA)))
	for i := range tests {
		tt := &tests[i]
		var names []string
		for _, match := range regexp.MustCompile(`name=(\S+)`).FindAllStringSubmatch(tt.log.String(), -1) {
			names = append(names, strings.ToLower(match[1]))
		}
		assert.Equal(t, tt.name, tt.want, strings.Join(names, " "))
	}
}

// BenchmarkAnswerFromMemoryWatched is a hit while watchers select it, which each get 1,000 queries a second, or other queries.
func BenchmarkAnswerFromMemoryWatched(b *testing.B) {
	for _, bb := range []struct {
		name   string
		number int
		filter resolve.Filter
	}{
		{name: "none"},
		{"1, another name", 1, resolve.Filter{Domain: []byte("\x05other\x04test\x00")}},
		{"8, another name", 8, resolve.Filter{Domain: []byte("\x05other\x04test\x00")}},
		{"8, another pod", 8, resolve.Filter{Namespace: "shop", Pod: "web"}},
		{"1, all", 1, resolve.Filter{}},
		{"8, all", 8, resolve.Filter{}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			p := plan(b, newUpstream(b, "www.test. 300 IN A 192.0.2.1"))
			p.Watchers, p.Pods = new(resolve.Watchers), pods.NewIndex(time.Minute, nil)
			for range bb.number {
				filter := bb.filter
				filter.Admit = rate.NewLimiter(1000, 100).Allow
				p.Watchers.Add(&resolve.QueryLog{All: true, Filter: &filter, TypeName: typeName, Log: slog.New(slog.DiscardHandler)})
			}
			c, q := newClient(newResolver(b, p), false), pack(b, question("www.test.", dns.TypeA))
			c.exchange(b, q)
			dst, now := make([]byte, 0, 4096), time.Now()
			b.ReportAllocs()
			for b.Loop() {
				c.worker.AnswerFromMemory(q, &c.from, now, dst)
			}
		})
	}
}
