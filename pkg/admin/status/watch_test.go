// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"crypto/rand"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/status"
	"github.com/nodecache/node-cache/pkg/pods"
	"github.com/nodecache/node-cache/pkg/resolve"
	"github.com/nodecache/node-cache/pkg/wire"
)

func TestWatchParameters(t *testing.T) {
	t.Parallel()
	var index *pods.Index
	page := status.WatchPage(new(resolve.Watchers), func() *pods.Index { return index }, nil)
	for given, want := range map[string]string{
		"":                                      "",
		"name=Test&rcode=servfail&source=cache": "",
		"pod=web":                               `pod "web": not NAMESPACE/POD, or a namespace is given too`,
		"pod=a/b&namespace=a":                   `pod "a/b": not NAMESPACE/POD, or a namespace is given too`,
		"rcode=FINE&source=x":                   `rcode "FINE": not one of NOERROR, FORMERR, SERVFAIL, NXDOMAIN, NOTIMP, REFUSED, BADVERS, other` + "\n" + `source "x": not one of zone, cache, stale, upstream, failure, local, refused, shed, transfer, static, search, etcd, block, kernel`,
		"name=a..b":                             `name "a..b": not a domain name`,
		"pod=shop/web":                          "the pods of the node are not known\nhint: set pods.identity",
	} {
		parameters, err := url.ParseQuery(given)
		assert.NoError(t, err)
		_, end, err := page(parameters)
		got := ""
		if err == nil {
			end()
		} else {
			got = err.Error()
		}
		assert.Equal(t, given, want, got)
	}
	index = pods.NewIndex(time.Minute, nil)
	_, _, err := page(url.Values{"pod": {"shop/web"}})
	assert.NoError(t, err)
}

// TestWatchRate watches more queries than one watcher gets, and reads them late. The rest is counted.
func TestWatchRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		watchers := new(resolve.Watchers)
		lines, end, err := status.WatchPage(watchers, func() *pods.Index { return nil }, nil)(nil)
		assert.NoError(t, err)
		defer end()
		r, err := resolve.New(resolve.Config{Plan: &resolve.Plan{Watchers: watchers}, Now: time.Now, Rand: rand.Reader})
		assert.NoError(t, err)
		worker := r.NewWorker()
		m := new(dns.Msg)
		m.SetQuestion("version.bind.", dns.TypeTXT)
		m.Question[0].Qclass = dns.ClassCHAOS
		pkt, err := m.Pack()
		assert.NoError(t, err)
		query := func(n int) {
			for range n {
				_, verdict := worker.AnswerFromMemory(pkt, &wire.Peer{Addr: netip.MustParseAddrPort("10.1.2.3:4000")}, time.Now(), nil)
				assert.Equal(t, "verdict", wire.Answered, verdict)
			}
		}
		read := func(n int) (last string) {
			for range n {
				last = string(<-lines)
			}
			return last
		}
		query(1000)
		assert.Equal(t, "of a burst", 100, len(lines))
		if line := read(100); !strings.Contains(line, `"name":"version.bind.","type":"TXT","tcp":false,"rcode":"REFUSED","source":"refused","took":0,"client":"10.1.2.3"}`) {
			t.Errorf("line %s", line)
		}
		for range 10 { // as many as a watcher gets, which is not read
			time.Sleep(100 * time.Millisecond)
			query(100)
		}
		assert.Equal(t, "waiting", 255, len(lines))
		assert.Equal(t, "the first of them", `{"dropped":900}`+"\n", read(1))
		read(254)
		query(1)
		assert.Equal(t, "after the buffer was full", `{"dropped":746}`+"\n", read(1))
	})
}
