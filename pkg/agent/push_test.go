// SPDX-License-Identifier: Apache-2.0

package agent_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
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
	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
	"github.com/nodecache/node-cache/pkg/wire"
)

// A subscriber is a client of DNS Push Notifications.
type subscriber struct {
	net.Conn
	t  *testing.T
	id uint16
}

func newSubscriber(t *testing.T, a *agent.Agent) *subscriber {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", a.Addrs()[0].String())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	assert.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	return &subscriber{Conn: conn, t: t}
}

func (c *subscriber) send(msg []byte) {
	c.t.Helper()
	frame, _ := wire.SealFrame(append(wire.OpenFrame(nil), msg...), 0)
	_, err := c.Write(frame)
	assert.NoError(c.t, err)
}

// subscribe returns the request for ANY of a name.
func (c *subscriber) subscribe(name string) []byte {
	c.t.Helper()
	c.id++
	owner, err := wire.AppendName(nil, name)
	assert.NoError(c.t, err)
	return dso.AppendSubscribe(dso.AppendHeader(nil, dso.Request, c.id, 0), dso.Subscription{Name: owner, Type: wire.TypeANY, Class: wire.ClassIN})
}

// next returns the next message that is no heartbeat.
func (c *subscriber) next() []byte {
	c.t.Helper()
	for {
		size := make([]byte, 2)
		if _, err := io.ReadFull(c, size); err != nil {
			c.t.Fatalf("the session has ended: %v", err)
		}
		msg := make([]byte, int(size[0])<<8|int(size[1]))
		_, err := io.ReadFull(c, msg)
		assert.NoError(c.t, err)
		if m, err := dso.Parse(msg); err != nil || m.Kind != dso.Unidirectional || m.Primary().Type != dso.TypeKeepalive {
			return msg
		}
	}
}

// want reads a message and compares it with a text: of a response its ID and rcode, of a PUSH its changes.
func (c *subscriber) want(want string) {
	c.t.Helper()
	if got := pushText(c.next()); got != want {
		c.t.Errorf("got %q, want %q", got, want)
	}
}

func pushText(msg []byte) string {
	m, err := dso.Parse(msg)
	switch {
	case err != nil:
		var r dns.Msg
		if err := r.Unpack(msg); err != nil {
			return err.Error()
		}
		return fmt.Sprintf("answer %d %s", r.Id, addresses(&r))
	case m.Kind == dso.Response:
		return fmt.Sprintf("response %d %s", m.ID, dns.RcodeToString[int(m.Rcode)])
	case m.Primary().Type == dso.TypeRetryDelay:
		return "retry delay " + dns.RcodeToString[int(m.Rcode)]
	}
	out := "push"
	if err := m.Changes(func(c dso.Change) bool {
		if c.TTL == dso.TTLRemoveCollective {
			out += " -" + string(wire.AppendText(nil, c.Name))
		}
		if addr, ok := netip.AddrFromSlice(c.Data); ok && c.Type == wire.TypeA {
			out += " +" + addr.String()
		}
		return true
	}); err != nil {
		return err.Error()
	}
	return out
}

// pushConfig answers the cluster's names from a folder of manifests, and lets clients of 127.0.0.0/8 subscribe.
func pushConfig(t *testing.T, dir string) config.Config {
	t.Helper()
	cfg := clusterConfig(t, dir, upstreamtest.New(upstreamtest.Zone("www.example.com. 30 IN A 192.0.2.1")).Listen(t))
	cfg.Push.Clients = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	return cfg
}

// From a change of an object to the client, on a session that also asks; what a reload and the end make of it.
func TestPush(t *testing.T) {
	t.Parallel()
	const web = "web.shop.svc.cluster.local."
	dir := folder(t)
	cfg := pushConfig(t, dir)
	a, stop := start(t, agent.Options{Config: &cfg, Log: io.Discard})
	c := newSubscriber(t, a)
	query := func(name string) []byte {
		q, err := new(dns.Msg).SetQuestion(name, dns.TypeA).Pack()
		assert.NoError(t, err)
		wire.SetID(q, 77)
		return q
	}
	c.send(c.subscribe(web))
	c.want("response 1 NOERROR")
	c.want("push +10.96.0.7")
	c.send(query(web))
	c.want("answer 77 10.96.0.7")
	c.send(query("www.example.com."))
	c.want("answer 77 192.0.2.1")
	c.send(c.subscribe("www.example.com"))
	c.want("response 2 NOTAUTH")

	putManifest(t, dir, "web", serviceYAML("web", "{clusterIP: 10.96.0.8, ports: [{port: 80}]}"))
	c.want("push -" + web + " +10.96.0.8")
	c.send(query(web))
	c.want("answer 77 10.96.0.8")
	if st := statusOf(t, a).Push; st == nil || st.Sessions != 1 || st.Subscriptions != 1 || st.Pushed < 2 || st.Refused.Name != 1 {
		t.Errorf("status %+v", st)
	}

	hosts := cfg
	hosts.Hosts.Names = map[string][]netip.Addr{web: {netip.MustParseAddr("192.0.2.9")}}
	_, err := a.Reload(hosts, nil)
	assert.NoError(t, err)
	c.want("retry delay NOERROR")
	c = newSubscriber(t, a)
	c.send(c.subscribe(web))
	c.want("response 1 NOTAUTH")
	_, err = a.Reload(cfg, nil)
	assert.NoError(t, err)

	c = newSubscriber(t, a)
	c.send(c.subscribe(web))
	c.want("response 1 NOERROR")
	c.want("push +10.96.0.8")
	off := cfg
	off.Push.Clients = nil
	_, err = a.Reload(off, nil)
	assert.NoError(t, err)
	c.want("retry delay NOERROR")
	c = newSubscriber(t, a)
	c.send(c.subscribe(web))
	c.want("response 1 NOTIMP")
	if st := statusOf(t, a).Push; st != nil {
		t.Errorf("without clients: status %+v", st)
	}
	_, err = a.Reload(cfg, nil)
	assert.NoError(t, err)
	c = newSubscriber(t, a)
	c.send(c.subscribe(web))
	c.want("response 1 NOERROR")
	c.want("push +10.96.0.8")
	go stop()
	c.want("retry delay NOERROR")
}

// A reload leaves the session open, and reports the names that have other answers. The change of another name ends what it reports.
func TestPushReload(t *testing.T) {
	t.Parallel()
	const web, db, last = "web.shop.svc.cluster.local.", "db.shop.svc.cluster.local.", "last.shop.svc.cluster.local."
	prefix, loopback := netip.MustParsePrefix("10.0.0.0/8"), []netip.Addr{netip.MustParseAddr("192.0.2.9")}
	for name, tt := range map[string]struct {
		change func(*config.Config)
		want   string // removed names, or the end
	}{
		"limits": {func(c *config.Config) { c.Limits.Inflight, c.Limits.TCPSessions = 100, 99 }, last},
		"log and cache": {func(c *config.Config) {
			c.Log.Level, c.Cache.Size, c.Cache.MaxTTL = slog.LevelWarn, c.Cache.Size/2, time.Hour
		}, last},
		"upstreams": {func(c *config.Config) {
			c.Forward = append(slices.Clone(c.Forward), config.Route{Zone: "corp.example.", To: c.Forward[0].To})
		}, last},
		"hosts of other names":       {func(c *config.Config) { c.Hosts.Names = map[string][]netip.Addr{"a.example.": loopback} }, last},
		"more clients":               {func(c *config.Config) { c.Push.Clients = append(slices.Clone(c.Push.Clients), prefix) }, last},
		"the objects are read again": {func(c *config.Config) { c.Cluster.StaleAfter *= 2 }, db + " " + last + " " + web},
		"the TTL":                    {func(c *config.Config) { c.Cluster.TTL = 7 * time.Second }, db + " " + last + " " + web},
		"DNS64":                      {func(c *config.Config) { c.DNS64.Prefix = netip.MustParsePrefix("64:ff9b::/96") }, db + " " + last + " " + web},
		"hosts have a name":          {func(c *config.Config) { c.Hosts.Names = map[string][]netip.Addr{db: loopback} }, "retry delay NOERROR"},
		"other clients":              {func(c *config.Config) { c.Push.Clients = []netip.Prefix{prefix} }, "retry delay NOERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := folder(t)
			putManifest(t, dir, "db", serviceYAML("db", "{clusterIP: 10.96.0.2, ports: [{port: 80}]}"))
			cfg := pushConfig(t, dir)
			a, _ := start(t, agent.Options{Config: &cfg, Log: io.Discard})
			c := newSubscriber(t, a)
			for _, name := range []string{web, db, last} {
				c.send(c.subscribe(name))
				c.want(fmt.Sprintf("response %d NOERROR", c.id))
				if name != last {
					c.next() // its records
				}
			}
			tt.change(&cfg)
			_, err := a.Reload(cfg, nil)
			assert.NoError(t, err)
			putManifest(t, dir, "last", serviceYAML("last", "{clusterIP: 10.96.0.4, ports: [{port: 80}]}"))
			removed := map[string]bool{}
			for {
				text := pushText(c.next())
				if !strings.HasPrefix(text, "push") {
					assert.Same(t, "the end", tt.want, text)
					return
				}
				for _, change := range strings.Fields(text)[1:] {
					if name, ok := strings.CutPrefix(change, "-"); ok {
						removed[name] = true
					}
				}
				if strings.Contains(text, "+10.96.0.4") {
					break
				}
			}
			assert.Same(t, "removed names", tt.want, strings.Join(slices.Sorted(maps.Keys(removed)), " "))
		})
	}
}

// A hosts file that changes ends the sessions that have its names, and no other.
func TestPushHostsFile(t *testing.T) {
	t.Parallel()
	cfg := pushConfig(t, folder(t))
	file := filepath.Join(t.TempDir(), "hosts")
	assert.NoError(t, os.WriteFile(file, nil, 0o600))
	cfg.Hosts.Files = []string{file}
	a, _ := start(t, agent.Options{Config: &cfg, Log: io.Discard})
	c, other := newSubscriber(t, a), newSubscriber(t, a)
	c.send(c.subscribe("db.shop.svc.cluster.local"))
	c.want("response 1 NOERROR")
	other.send(other.subscribe("cache.shop.svc.cluster.local"))
	other.want("response 1 NOERROR")
	assert.NoError(t, os.WriteFile(file, []byte("192.0.2.9 db.shop.svc.cluster.local\n"), 0o600))
	c.want("retry delay NOERROR")
	other.send(other.subscribe("web.shop.svc.cluster.local"))
	other.want("response 2 NOERROR")
}

// A heartbeat has the age of what is known, and versions for each kind.
func TestPushView(t *testing.T) {
	t.Parallel()
	cfg := pushConfig(t, folder(t))
	a, _ := start(t, agent.Options{Config: &cfg, Log: io.Discard})
	c := newSubscriber(t, a)
	c.send(dso.AppendKeepalive(dso.AppendHeader(nil, dso.Request, 1, 0), dso.Keepalive{}))
	c.want("response 1 NOERROR")
	for range 2 { // at once, and 2 s later
		size := make([]byte, 2)
		_, err := io.ReadFull(c, size)
		assert.NoError(t, err)
		msg := make([]byte, int(size[0])<<8|int(size[1]))
		_, err = io.ReadFull(c, msg)
		assert.NoError(t, err)
		m, err := dso.Parse(msg)
		assert.NoError(t, err)
		tlv, _ := m.Find(dso.TypeView)
		if v, err := tlv.View(); err != nil || len(v.Kinds) < 3 || v.Age > 10*time.Second {
			t.Errorf("view %+v, error %v", v, err)
		}
	}
}

// Hostile subscribers, each in its own way, beside a client that asks: it gets every answer, and what they cost is bounded. How long the
// answers take says TestPushAttack of test/pressure.
func TestPushAttack(t *testing.T) {
	t.Parallel()
	cfg := pushConfig(t, folder(t))
	cfg.Limits.TCPPerClient = 64
	a, _ := start(t, agent.Options{Config: &cfg, Log: io.Discard})
	ctx, cancel := context.WithCancel(t.Context())
	var attackers sync.WaitGroup
	var sent atomic.Int64
	var source atomic.Uint32 // not 127.0.0.1, whose sessions always have a place
	attack := func(reads bool, messages func(c *subscriber, i int) []byte) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(2+source.Add(1)))}}
		attackers.Go(func() {
			for ctx.Err() == nil {
				conn, err := dialer.DialContext(ctx, "tcp", a.Addrs()[0].String())
				if err != nil {
					continue
				}
				end := context.AfterFunc(ctx, func() { _ = conn.Close() })
				if reads {
					attackers.Go(func() { _, _ = io.Copy(io.Discard, conn) })
				}
				c := &subscriber{Conn: conn, t: t}
				for i := 0; ; i++ {
					msg := messages(c, i)
					if msg == nil {
						break
					}
					sent.Add(1)
					if _, err := conn.Write(msg); err != nil {
						break
					}
				}
				end()
				_ = conn.Close()
			}
		})
	}
	framed := func(msg []byte) []byte {
		frame, _ := wire.SealFrame(append(wire.OpenFrame(nil), msg...), 0)
		return frame
	}
	header := dso.AppendHeader(nil, dso.Unidirectional, 0, 0)
	many := func(c *subscriber, i int) []byte {
		if i == 65535 {
			<-ctx.Done()
			return nil
		}
		return framed(c.subscribe(fmt.Sprintf("n%d.shop.svc.cluster.local", i)))
	}
	attack(true, many)
	attack(true, many)
	attack(false, many) // reads nothing
	attack(true, func(c *subscriber, i int) []byte {
		if c.id = 6; i%2 == 0 {
			return framed(c.subscribe(fmt.Sprintf("n%d.shop.svc.cluster.local", i)))
		}
		return framed(dso.AppendUnsubscribe(slices.Clone(header), 7))
	})
	attack(true, func(_ *subscriber, i int) []byte { // garbage TLVs
		return framed(append(dso.AppendHeader(nil, dso.Kind(i%3), uint16(i), 0), bytes.Repeat([]byte{byte(i), 0x40}, i%50)...))
	})
	attack(true, func(_ *subscriber, i int) []byte { // half a message
		if i == 1 {
			<-ctx.Done()
			return nil
		}
		return []byte{0x3f, 0xff, 0, 1, 0x30}
	})
	attack(true, func(c *subscriber, i int) []byte { // many sessions
		if i == 2 {
			return nil
		}
		return framed(c.subscribe("web.shop.svc.cluster.local"))
	})
	for range 200 {
		if got := addresses(ask(t, a, "udp", "web.shop.svc.cluster.local.")); got != "10.96.0.7" {
			t.Errorf("got %s", got)
		}
	}
	st := statusOf(t, a).Push
	if st.Bytes > 64<<20 || st.Subscriptions > 64*16384 {
		t.Errorf("status %+v", st)
	}
	cancel()
	attackers.Wait()
	t.Logf("%d messages: %+v", sent.Load(), *st)
	proctest.Eventually(t, time.Minute, "nothing is left of the attack", func() bool { // connections that the kernel had queued come and go
		st := statusOf(t, a).Push
		return st.Sessions == 0 && st.Subscriptions == 0 && st.Names == 0 && st.Bytes == 0
	})
}
