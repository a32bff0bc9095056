// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// TestStopAnswersWhatIsInFlight reloads and then stops the agent while 200 slow queries wait for their upstream, half of them
// over UDP and half over TCP. Every one is answered.
func TestStopAnswersWhatIsInFlight(t *testing.T) {
	t.Parallel()
	const queries = 200
	gate := make(chan struct{})
	release := sync.OnceFunc(func() { close(gate) })
	defer release()    // else the upstream waits for ever when this fails
	var names sync.Map // of the queries that have come
	var waiting atomic.Int64
	upstream := startScripted(t, func(w dns.ResponseWriter, q *dns.Msg) {
		// It answers the agent's probes: one that says nothing at all is asked no more after some 800 ms.
		if name := dns.CanonicalName(q.Question[0].Name); strings.HasPrefix(name, "slow") {
			if _, again := names.LoadOrStore(name, true); !again {
				waiting.Add(1)
			}
			<-gate
		}
		answerA(w, q)
	})
	// Until the last query has come, the first one must not be over its deadline.
	a := startAgent(t, settings{to: []string{upstream}, more: "limits: {deadline: 20s}"})

	var wg sync.WaitGroup
	results := make(chan error, queries)
	for i := range queries {
		wg.Go(func() {
			client := dns.Client{Net: []string{"udp", "tcp"}[i%2], Timeout: 20 * time.Second}
			r, _, err := client.Exchange(new(dns.Msg).SetQuestion(fmt.Sprintf("slow%d.e2e.test.", i), dns.TypeA), a.addr)
			if err == nil && (r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1) {
				err = fmt.Errorf("%s with %d records", dns.RcodeToString[r.Rcode], len(r.Answer))
			}
			results <- err
		})
	}
	proctest.Eventually(t, time.Minute, "every query waits at the upstream", func() bool { return waiting.Load() == queries })
	a.Signal(syscall.SIGHUP)
	a.awaitPage(t, "/metrics", "the configuration is applied again", func(page string) bool { return strings.Contains(page, "nodecache_config_generation 2\n") })
	a.Signal(syscall.SIGTERM)
	time.Sleep(200 * time.Millisecond) // the agent is stopping, and the answers come only now
	release()
	wg.Wait()
	close(results)
	lost := 0
	for err := range results {
		if err != nil {
			lost++
			t.Logf("a query in flight: %v", err)
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d queries in flight were not answered", lost, queries)
	}
	a.Stop(t)
}

// splitPort takes an address apart.
func splitPort(t *testing.T, addr string) (host string, port int) {
	t.Helper()
	host, text, err := net.SplitHostPort(addr)
	assert.NoError(t, err)
	if port, err = strconv.Atoi(text); err != nil {
		t.Fatal(err)
	}
	return host, port
}

// TestLogReaderExits ends the process that reads the log: the agent goes on serving.
func TestLogReaderExits(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s := settings{address: "127.0.0.1", port: freePort(t), admin: freePort(t), to: []string{startScripted(t, answerA)}, more: "log: {queries: all}"}
	config := writeFile(t, filepath.Join(folder, "config.yaml"), s.yaml())
	const script = `mkfifo "$2" && { true <"$2" & } && exec "$0" agent --config "$1" 2>"$2"`
	a := launch(t, s, exec.Command("sh", "-c", script, nodeCache, config, filepath.Join(folder, "log")), config)
	for range 3 {
		if got := dig(t, a.addr, "www.example.", "A"); len(got.answer) != 1 {
			t.Errorf("answer %q, want one record", got.answer)
		}
	}
}
