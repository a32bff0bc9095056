// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/proctest"
)

// output is what a command of node-cache did.
type output struct {
	Code           int
	Stdout, Stderr string
}

// runCommand runs node-cache, or what wraps it, and waits for its end.
func runCommand(t *testing.T, command ...string) output {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatalf("%s: %v", command, err)
	}
	return output{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// cacheCommand runs a command of the cache against an agent's admin server.
func cacheCommand(t *testing.T, where string, args ...string) output {
	t.Helper()
	return runCommand(t, append([]string{nodeCache, "cache", "--admin", where}, args...)...)
}

// startSeen runs an agent with a socket and a scripted upstream.
func startSeen(t *testing.T) (a *agent, socket string) {
	t.Helper()
	up := startScripted(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if !strings.HasPrefix(strings.ToLower(q.Question[0].Name), "gone.") {
			answerA(w, q)
			return
		}
		r := new(dns.Msg).SetReply(q)
		r.Rcode = dns.RcodeNameError
		soa, _ := dns.NewRR("seen.test. 60 IN SOA ns.seen.test. host.seen.test. 1 2 3 4 60")
		r.Ns = []dns.RR{soa}
		_ = w.WriteMsg(r)
	})
	path := proctest.SocketPath(t)
	return startAgent(t, settings{to: []string{up}, socket: path}), "unix:" + path
}

// TestSocketTaken starts a second agent that wants the socket of the first.
func TestSocketTaken(t *testing.T) {
	t.Parallel()
	_, socket := startSeen(t)
	path := strings.TrimPrefix(socket, "unix:")
	stderr := failToStart(t, agentCommand(t, fmt.Sprintf(
		"listen: {port: %d}\nforward: [{zone: \".\", to: [127.0.0.1:1]}]\nadmin: {address: 127.0.0.1:%d, socket: %q}\n", freePort(t), freePort(t), path)))
	checkOneProblem(t, stderr, "admin server: listening on unix socket "+path+": another process listens there", "hint: another agent uses this admin.socket: set a different path for each agent")
	if got := cacheCommand(t, socket, "top"); got.Code != 3 || got.Stderr != "" {
		t.Errorf("the first agent's cache: %+v", got)
	}
}

// TestFlushUnderLoad flushes all, and reads the cache, repeatedly while clients ask. No client misses a reply, and every
// reply is right.
func TestFlushUnderLoad(t *testing.T) {
	t.Parallel()
	a, socket := startSeen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var asked atomic.Int64
	ended := make(chan error)
	const clients = 4
	for c := range clients {
		go func() {
			conn, err := dns.Dial("udp", a.addr)
			if err != nil {
				ended <- err
				return
			}
			defer func() { _ = conn.Close() }()
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("n%d-%d.seen.test.", c, i%50)
				r, _, err := (&dns.Client{Timeout: 5 * time.Second}).ExchangeWithConn(new(dns.Msg).SetQuestion(name, dns.TypeA), conn)
				switch {
				case err != nil:
					ended <- fmt.Errorf("%s: %w", name, err)
					return
				case r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1:
					ended <- fmt.Errorf("%s: %s", name, r)
					return
				}
				asked.Add(1)
			}
			ended <- nil
		}()
	}
	flushes := 0
	for ctx.Err() == nil {
		for _, command := range [][]string{{"flush", "--all"}, {"flush", "--zone", "seen.test"}, {"flush", "n0-1.seen.test"}} {
			if got := cacheCommand(t, socket, command...); got.Code != 0 {
				t.Fatalf("%v: %+v", command, got)
			}
			flushes++
		}
		if got := cacheCommand(t, socket, "top", "-n", "5"); got.Stderr != "" {
			t.Fatalf("top: %+v", got)
		}
	}
	for range clients {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Attr("asked", fmt.Sprint(asked.Load()))
	t.Attr("flushes", fmt.Sprint(flushes))
	if asked.Load() == 0 || flushes == 0 {
		t.Errorf("%d queries and %d flushes, want many", asked.Load(), flushes)
	}
}
