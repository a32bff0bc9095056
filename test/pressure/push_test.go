// SPDX-License-Identifier: Apache-2.0

package pressure

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/dso"
	"github.com/nodecache/node-cache/pkg/wire"
)

// pushedZone has the names that the clients of TestPushAttack ask for.
const pushedZone = "web.shop.svc.cluster.local"

// TestPushAttack has clients that may subscribe attack a resolver in every way at once, while others ask for names of its zone and objects
// change. The attackers have another CPU than the resolver: they stand for pods of other nodes. E2E_ATTACK names single attacks.
func TestPushAttack(t *testing.T) {
	proctest.ReserveCPU(t)
	dir := t.TempDir()
	put := func(i int) {
		endpoints := make([]string, 100)
		for n := range endpoints {
			endpoints[n] = fmt.Sprintf("addresses: [10.201.%d.%d], hostname: %q", i&255, n, fmt.Sprintf("%0*d", digits, n))
		}
		proctest.WriteFile(t, filepath.Join(dir, "web.yaml"), "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"+
			service("shop", "web", "None", endpoints, "{name: web, port: 80, protocol: TCP}"))
	}
	put(0)
	a := start(t, settings{ownCPU: true, rest: fmt.Sprintf(`
cluster: {resolver: local, manifests: %q}
push: {clients: [127.0.0.0/8]}
forward: [{zone: ., to: ["127.0.0.1:9"]}]
`, dir)})
	c := startClients(t, clientsOptions{to: a.listen, rate: 1000, suffix: pushedZone, from: []netip.Addr{netip.MustParseAddr("127.0.1.1")}, name: func(i int) int { return i % 100 }}, true)
	quiet := time.Now()
	time.Sleep(proctest.OrdinaryOrSoak(time.Second, 10*time.Second))

	to := target{Attacks: pushAttackNames(), Agent: a.listen}
	if only := os.Getenv("E2E_ATTACK"); only != "" {
		to.Attacks = strings.Split(only, ",")
	}
	for i := range 8 {
		to.Sources = append(to.Sources, netip.AddrFrom4([4]byte{127, 0, 2, byte(1 + i)}))
	}
	text, err := json.Marshal(to)
	assert.NoError(t, err)
	cmd := exec.CommandContext(context.Background(), "nice", "-n", "19", os.Args[0])
	cmd.Env = append(cmd.Environ(), attacksEnv+"="+string(text))
	attacker := proctest.Start(t, "the attackers", cmd)
	began, before := time.Now(), a.Usage(t)
	most, highest := pushStatus{}, before.RSS
	for i := 1; time.Since(began) < proctest.OrdinaryOrSoak(5*time.Second, time.Minute); i++ {
		put(i)
		time.Sleep(200 * time.Millisecond)
		var st struct{ Push pushStatus }
		a.Status(t, &st)
		most.Sessions, most.Subscriptions = max(most.Sessions, st.Push.Sessions), max(most.Subscriptions, st.Push.Subscriptions)
		most.Bytes, most.Pushed = max(most.Bytes, st.Push.Bytes), st.Push.Pushed
		highest = max(highest, a.Usage(t).RSS)
	}
	ended, after := time.Now(), a.Usage(t)
	attacker.Signal(syscall.SIGTERM)
	if err := attacker.Wait(t, time.Minute); err != nil {
		t.Errorf("the attackers ended with %v", err)
	}
	for line := range strings.Lines(attacker.Stdout.String()) {
		proctest.Figure(t, "attack %s", strings.TrimSpace(line))
	}
	c.end()
	for _, phase := range []struct {
		name     string
		from, to time.Time
	}{{"before", quiet, began}, {"under attack", began, ended}} {
		took := c.took(phase.from, phase.to)
		proctest.Figure(t, "queries %s: %d answered, median %s, p99 %s, p99.9 %s, longest %s", phase.name, len(took),
			ms(quantile(took, 500)), ms(quantile(took, 990)), ms(quantile(took, 999)), ms(quantile(took, 1000)))
	}
	proctest.Figure(t, "resolver: %.0f %% of a CPU, %.1f MiB, at most %+v", 100*float64(after.CPU-before.CPU)/float64(ended.Sub(began)), inMiB(highest), most)
	if asked := int(c.asked.Load()); c.rcodes()[dns.RcodeSuccess] < asked-allowedFailures(asked, 1000) {
		t.Errorf("queries: %s, want NOERROR for all", c)
	}
	proctest.Eventually(t, time.Minute, "nothing is left of the attack", func() bool {
		var st struct{ Push pushStatus }
		a.Status(t, &st)
		return st.Push.Sessions == 0 && st.Push.Subscriptions == 0 && st.Push.Bytes == 0
	})
}

// pushStatus is what tests read of push in /status.
type pushStatus struct {
	Sessions, Subscriptions int
	Bytes, Pushed           int64
}

// pushAttacks are what clients that may subscribe try, each with two sessions from each address.
func pushAttacks() []attack {
	subscribe := func(id uint16, name string, rrtype uint16) []byte {
		owner, err := wire.AppendName(nil, name)
		if err != nil {
			panic(err)
		}
		return framed(dso.AppendSubscribe(dso.AppendHeader(nil, dso.Request, id, 0), dso.Subscription{Name: owner, Type: rrtype, Class: wire.ClassIN}))
	}
	// pushing sends what next returns, as fast as the resolver takes it, and then waits for the end of the session.
	pushing := func(reads bool, next func(conn, i int) []byte) func(a *attacker) {
		return func(a *attacker) {
			a.sessions(a.Agent, 2, func(conn *net.TCPConn, number int) {
				var reading sync.WaitGroup
				if reads {
					reading.Go(func() { _, _ = io.Copy(io.Discard, struct{ io.Reader }{conn}) })
				}
				defer reading.Wait()
				defer func() { _ = conn.Close() }()
				for i := 0; a.ctx.Err() == nil; i++ {
					msg := next(number, i)
					if msg == nil {
						return
					}
					if _, err := conn.Write(msg); err != nil {
						return
					}
					a.sent.Add(1)
				}
			})
		}
	}
	many := func(number, i int) []byte {
		if i == 65535 {
			time.Sleep(5 * time.Second)
			return nil
		}
		return subscribe(uint16(i+1), fmt.Sprintf("n%d.s%d.shop.svc.cluster.local.", i, number%3), wire.TypeANY)
	}
	return []attack{
		{"many", pushing(true, many)},
		{"unread-push", pushing(false, many)},
		{"one-name", pushing(true, func(_, i int) []byte {
			if i == 65535 {
				time.Sleep(5 * time.Second)
				return nil
			}
			return subscribe(uint16(i+1), "00000001."+pushedZone+".", uint16(i))
		})},
		{"in-turn", pushing(true, func(_, i int) []byte {
			if i%2 == 0 {
				return subscribe(7, fmt.Sprintf("%08d.%s.", i%100, pushedZone), wire.TypeANY)
			}
			return framed(dso.AppendUnsubscribe(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 7))
		})},
		{"comings", pushing(true, func(_, i int) []byte {
			if i == 2 {
				return nil
			}
			return subscribe(uint16(i+1), fmt.Sprintf("%08d.%s.", i, pushedZone), wire.TypeANY)
		})},
		{"large-push", pushing(true, func(_, i int) []byte { // 100 addresses and 100 SRV records each
			if i%2 == 0 {
				return subscribe(9, pushedZone+".", wire.TypeANY)
			}
			return framed(dso.AppendUnsubscribe(dso.AppendHeader(nil, dso.Unidirectional, 0, 0), 9))
		})},
		{"tlvs", pushing(true, func(_, i int) []byte {
			msg := dso.AppendHeader(nil, dso.Kind(i%3), uint16(i), 0)
			for range i % 50 {
				msg = binary.BigEndian.AppendUint16(msg, uint16(rand.Uint32()))
			}
			return framed(msg)
		})},
	}
}

func pushAttackNames() (list []string) {
	for _, a := range pushAttacks() {
		list = append(list, a.name)
	}
	return list
}
