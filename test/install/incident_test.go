// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/admin/status"
)

// testOutage silences the Internet's DNS server while pods ask, and finds the trace of that afterwards, from each place where operators
// look: what, since when, until when, and which pod asked for which name.
func (b *harness) testOutage(t *testing.T) {
	t.Helper()
	clients := b.startClients(t, "outage")
	began := time.Now()
	b.SilenceInternet(true)
	lasts := began.Add(proctest.OrdinaryOrSoak(30*time.Second, time.Minute))
	var lookups sync.WaitGroup
	for _, c := range clients {
		lookups.Go(func() {
			for n := 0; time.Now().Before(lasts); n++ {
				if out, err := b.Kubectl(t.Context(), "", "exec", c.name, "--", "nslookup", fmt.Sprintf("outage%d.example.com", n)); err == nil {
					t.Errorf("%s got an answer without an upstream: %s", c.name, out)
					return
				}
			}
		})
	}
	lookups.Wait()
	metric := regexp.MustCompile(`(?m)^nodecache_problems\{.*reason="RouteDown".*\} [1-9]$`)
	b.eventually(t, "metrics and page of both agents say so meanwhile", func() bool { // while a probe of the upstream runs, they may not
		for i, page := range b.pages(t, "/") {
			if !strings.Contains(page, string(status.RouteDown)) || !metric.MatchString(b.pages(t, "/metrics")[i]) {
				return false
			}
		}
		return true
	})
	b.SilenceInternet(false)
	ended := time.Now()
	for i, agent := range b.agents(t) {
		var s status.Status
		var outage status.TimelineEntry
		b.eventually(t, "the end of the outage in the timeline of "+agent.Name, func() bool {
			s = status.Status{}
			b.status(t, agent, &s)
			for _, e := range s.Timeline {
				if since, err := time.Parse(time.RFC3339, e.Since); err == nil && e.Reason == status.RouteDown && e.Where == "forward ." && since.After(began.Add(-time.Second)) {
					outage = e
				}
			}
			return outage.Until != ""
		})
		since, _ := time.Parse(time.RFC3339, outage.Since)
		until, err := time.Parse(time.RFC3339, outage.Until)
		const slack = 15 * time.Second // for a busy machine: an upstream is down after some queries, and problems are compared each five seconds
		if err != nil || since.After(began.Add(slack)) || until.Before(ended.Add(-time.Second)) || until.After(ended.Add(slack)) {
			t.Errorf("%s: the outage from %s to %s: since %s until %s, %v", agent.Name, began, ended, since, until, err)
		}
		pod, asked := "default/"+clients[i].name, regexp.MustCompile(`^outage\d+\.example\.com\.`)
		named := false
		for _, c := range outage.Clients {
			named = named || (c.Client == pod || c.Client == clients[i].pod.Status.PodIP) && asked.MatchString(c.Name)
		}
		if !named || outage.Failed == 0 {
			t.Errorf("%s: failed queries %d, clients %+v, want %s", agent.Name, outage.Failed, outage.Clients, pod)
		}
		// The second of two lines about a problem comes a minute after the first, if need be.
		b.eventually(t, "begin and end in the log of "+agent.Name, func() bool {
			log := b.kubectl(t, "-n", "kube-system", "logs", agent.Name)
			return regexp.MustCompile(`"problem began","reason":"RouteDown","where":"forward \."`).MatchString(log) &&
				regexp.MustCompile(`"problem ended","reason":"RouteDown","where":"forward \.".*"lasted_seconds":.*"failed_queries":`).MatchString(log)
		})
	}
	for i, page := range b.pages(t, "/") {
		if _, hour, _ := strings.Cut(page, "Last hour"); !strings.Contains(hour, string(status.RouteDown)) {
			t.Errorf("the last hour on the page of %s does not have RouteDown", b.Nodes[i].Name)
		}
	}
	events := func(reason string) []string {
		return slices.DeleteFunc(b.events(t, reason, began), func(message string) bool { return !strings.Contains(message, "forward .: ") }) // not that of the fallback
	}
	for _, reason := range []string{"RouteDown", "RouteDownEnded"} {
		b.eventually(t, "an Event "+reason+" of each agent", func() bool { return len(events(reason)) == 2 })
	}
	proctest.Figure(t, "an outage of %s; one Event says: %s", ended.Sub(began).Round(time.Second), events("RouteDownEnded")[0])
}

// pages returns a page of both agents, as programs of their nodes get it.
func (b *harness) pages(t *testing.T, path string) []string {
	t.Helper()
	var all []string
	for _, n := range b.Nodes {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://169.254.20.10:9253"+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := (&http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s of %s: %s, %v: %s", path, n.Name, answer.Status, err, text)
		}
		all = append(all, string(text))
	}
	return all
}

// testStandby has all pods served by CoreDNS in one command, a node whose agent starts meanwhile too, and back. The agents watch their
// ConfigMap for that.
func (b *harness) testStandby(t *testing.T) {
	t.Helper()
	b.kubectl(t, "apply", "-k", b.manifests(t, "daemonset/components/metrics", "daemonset/components/config-map"))
	b.kubectl(t, "-n", "kube-system", "rollout", "status", "daemonset/node-cache", "--timeout=3m")
	b.awaitAgentsReady(t)
	folder := t.TempDir()
	b.runShell(t, "tar -C "+folder+" -xf "+filepath.Join(images, "kubectl-node_cache-linux-"+runtime.GOARCH+".tar.gz"))
	plugin := func(verb, want string) time.Duration {
		began := time.Now()
		out, err := b.Shell(context.WithoutCancel(t.Context()), folder, "PATH=$PATH:"+folder+" kubectl node-cache "+verb).CombinedOutput()
		if err != nil || !strings.HasSuffix(string(out), want) {
			t.Fatalf("kubectl node-cache %s: %v\n%s\n%s", verb, err, out, b.state(t))
		}
		return time.Since(began)
	}
	clients := b.startClients(t, "standby")
	took := plugin("off", "2 of 2 agents are in standby: the fallback answers\n")
	// A UDP query was lost only if it was on its way; TCP sessions with the agent end.
	proctest.Figure(t, "all pods are served by CoreDNS %s after the command began; meanwhile: %s", took.Round(10*time.Millisecond), takeCounts(t, clients))
	before := b.queries(t)
	got := measure(t, clients, 3*time.Second, "served by CoreDNS")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.expectUnasked(t, before)

	agent := b.agents(t)[1]
	b.kubectl(t, "-n", "kube-system", "delete", "pod", agent.Name, "--grace-period=0", "--force")
	b.awaitAgentsReady(t)
	b.eventually(t, "the new agent is in standby", func() bool {
		var s status.Status
		b.status(t, b.agents(t)[1], &s)
		return s.Node.Intercept.Standby
	})
	before = b.queries(t)
	got = measure(t, clients, 3*time.Second, "beside an agent that started in standby")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	b.expectUnasked(t, before)

	took = plugin("on", "2 of 2 agents answer\n")
	proctest.Figure(t, "the agents answer again %s after the command began", took.Round(10*time.Millisecond))
	resetCounts(t, clients)
	before = b.queries(t)
	got = measure(t, clients, 3*time.Second, "served by the agents")
	expectNoLoss(t, map[string]tally{"UDP": got.UDP, "TCP": got.TCP})
	for i, now := range b.queries(t) {
		if now == before[i] {
			t.Errorf("the agent of %s was not asked", b.Nodes[i].Name)
		}
	}
}

// queries returns how many queries each agent has answered.
func (b *harness) queries(t *testing.T) []uint64 {
	t.Helper()
	var all []uint64
	for _, agent := range b.agents(t) {
		var s status.Status
		b.status(t, agent, &s)
		all = append(all, s.Queries.Total)
	}
	return all
}

// expectUnasked fails the test if an agent was asked since its count was taken. Its own queries to itself do not count.
func (b *harness) expectUnasked(t *testing.T, before []uint64) {
	t.Helper()
	for i, now := range b.queries(t) {
		if now != before[i] {
			t.Errorf("the agent of %s was asked %d times", b.Nodes[i].Name, now-before[i])
		}
	}
}
