// SPDX-License-Identifier: Apache-2.0

package kernel_test

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// upstream answers every question over TCP with 8 KiB, so that few fill a cache, while it is not silent.
type upstream struct {
	addr   netip.AddrPort
	silent atomic.Bool
}

func startUpstream(t *testing.T) *upstream {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	assert.NoError(t, err)
	u := &upstream{addr: listener.Addr().(*net.TCPAddr).AddrPort()}
	text := slices.Repeat([]string{strings.Repeat("x", 255)}, 32)
	s := &dns.Server{Listener: listener, MaxTCPQueries: -1, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		if u.silent.Load() {
			return
		}
		r := new(dns.Msg).SetReply(q)
		r.Answer = []dns.RR{&dns.TXT{
			Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeTXT, Class: dns.ClassINET, Ttl: 3600},
			Txt: text,
		}}
		_ = w.WriteMsg(r)
	})}
	var running sync.WaitGroup
	running.Go(func() { _ = s.ActivateAndServe() })
	t.Cleanup(func() {
		_ = s.Shutdown()
		running.Wait()
	})
	return u
}

// A loopbackAgent agent is one on loopback: it has no rules and no link.
type loopbackAgent struct {
	*proctest.Process
	listen, admin netip.AddrPort
	asked         atomic.Int64 // names of floods so far: each is another
}

// configure writes a configuration with a cache of so many bytes, and tells its path.
func (l *loopbackAgent) configure(t *testing.T, up *upstream, size int64) string {
	t.Helper()
	l.listen, l.admin = proctest.FreeAddr(t), proctest.FreeAddr(t)
	file := filepath.Join(t.TempDir(), "node-cache.yaml")
	text := fmt.Appendf(nil, `
listen: {addresses: [%q], port: %d}
forward: [{zone: ".", to: ["tcp://%s"]}]
cache: {size: %d}
admin: {address: %q}
`, l.listen.Addr(), l.listen.Port(), up.addr, size, l.admin)
	assert.NoError(t, os.WriteFile(file, text, 0o644))
	return file
}

// startLoopbackAgent starts an agent by the command that in makes, and waits until it tells its status.
func startLoopbackAgent(t *testing.T, up *upstream, size int64, in func(name string, args ...string) *exec.Cmd) *loopbackAgent {
	t.Helper()
	l := &loopbackAgent{}
	l.Process = proctest.Start(t, "agent", in("node-cache", "agent", "--config", l.configure(t, up, size)))
	poll(t, "the agent tells its status", func() error {
		if l.Ended() {
			t.Fatalf("it ended: %v", l.Err())
		}
		_, err := l.fetch(t)
		return err
	})
	return l
}

// localStatus is what tests read of /status.
type localStatus struct {
	Memory struct {
		CgroupBytes, GoLimitBytes int64
		By                        string
		Inflight, Waiting         int
	}
	Cache    struct{ Bytes, CapacityBytes, Evictions int64 }
	Problems []struct{ Where, What string }
}

func (l *loopbackAgent) fetch(t *testing.T) (s localStatus, err error) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: limit / 2}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+l.admin.String()+"/status", http.NoBody)
	if err != nil {
		return s, err
	}
	response, err := client.Do(request)
	if err != nil {
		return s, err
	}
	defer func() { _ = response.Body.Close() }()
	return s, json.NewDecoder(response.Body).Decode(&s)
}

func (l *loopbackAgent) status(t *testing.T) localStatus {
	t.Helper()
	s, err := l.fetch(t)
	assert.NoError(t, err)
	return s
}

// answers wants an answer with data, within the limit for anything.
func (l *loopbackAgent) answers(t *testing.T, name string) {
	t.Helper()
	poll(t, "the agent answers for "+name, func() error {
		c := dns.Client{Net: "tcp", Timeout: 5 * time.Second}
		r, _, err := c.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeTXT), l.listen.String())
		if err == nil && (r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1) {
			err = fmt.Errorf("answered by %s", r)
		}
		return err
	})
}

// ask sends queries for new names over a socket of its own, until it is over. Before each it calls
// next, with the socket.
func (l *loopbackAgent) ask(t *testing.T, over *atomic.Bool, next func(net.Conn)) {
	t.Helper()
	query, err := new(dns.Msg).SetQuestion("00000000.flood.test.", dns.TypeTXT).SetEdns0(1232, false).Pack()
	if err != nil {
		t.Error(err)
		return
	}
	conn, err := net.Dial("udp4", l.listen.String())
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	for !over.Load() {
		copy(query[13:], fmt.Sprintf("%08d", l.asked.Add(1)))
		_, _ = conn.Write(query) // it is refused once the agent has been killed
		next(conn)
	}
}

// fill has some clients ask, each when it has its answer, until the cache is full or the agent has ended.
func (l *loopbackAgent) fill(t *testing.T) {
	t.Helper()
	var over atomic.Bool
	var running sync.WaitGroup
	for range 16 {
		running.Go(func() {
			answer := make([]byte, 4096)
			l.ask(t, &over, func(conn net.Conn) {
				_ = conn.SetReadDeadline(time.Now().Add(time.Second))
				_, _ = conn.Read(answer)
			})
		})
	}
	defer running.Wait()
	defer over.Store(true)
	took := poll(t, "the cache is full", func() error {
		time.Sleep(200 * time.Millisecond) // an agent that is asked for its status all the time has no time for others
		if l.Ended() {
			return nil
		}
		s, err := l.fetch(t)
		if err == nil && s.Cache.Evictions == 0 {
			err = fmt.Errorf("it has %d of %d bytes", s.Cache.Bytes, s.Cache.CapacityBytes)
		}
		return err
	})
	t.Attr("filled-after", took.Round(100*time.Millisecond).String())
}

// flood asks rate times a second at most, and takes no answers, until the function returned is called.
func (l *loopbackAgent) flood(t *testing.T, rate int64) (end func()) {
	t.Helper()
	var over atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		start, sent := time.Now(), int64(0)
		l.ask(t, &over, func(net.Conn) {
			for sent++; !over.Load() && sent > rate*int64(time.Since(start))/int64(time.Second); {
				time.Sleep(time.Millisecond)
			}
		})
	})
	return func() {
		over.Store(true)
		running.Wait()
	}
}
