// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/nodetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// permit is how long the kernel answers a pod after the agent did.
const permit = 2 * time.Second

// withHits is the configuration of an agent that answers hits in the kernel.
const withHits = "kernel: {hits: on, permit: 2s}\n"

// TestHits has the kernel answer pods that are older than the agent and pods that are younger, and all of them after the agent has been
// started again.
func TestHits(t *testing.T) {
	for _, s := range settings() {
		if s.backend != "" || s.noAnswers != "" {
			continue // hits come before the rules, and need answers
		}
		t.Run(s.name, func(t *testing.T) {
			r, older, younger := startSetting(t, s, withHits)
			r.expectHits(t, older, s.noHits)
			r.expectHits(t, younger, s.noHits)
			if s.noHits == knownEgress {
				r.expectProblem(t, younger, "take the agent's replies before the program")
			} else {
				r.expectNoProblems(t)
			}
			r.expectFallback(t, older, syscall.SIGKILL) // and the agent is started again
			r.expectHits(t, older, s.noHits)
			r.expectHits(t, younger, s.noHits)
			r.expectFallback(t, younger, syscall.SIGSTOP)
			r.expectHandOver(t, older)
			r.expectHits(t, older, s.noHits)
			r.expectDenied(t, younger, older, permit)
		})
	}
}

// expectHits has a pod ask one name, of which the kernel is to answer 95 of 100, unless it is known why not.
func (r *rig) expectHits(t *testing.T, from *pod, known string) {
	t.Helper()
	r.askAndCount(t, from) // the first answers are the agent's, until it has given the kernel a copy
	kernel, all := r.askAndCount(t, from)
	switch few := kernel*100 < all*95; {
	case known != "" && !few:
		t.Errorf("%s: the kernel answers %d of %d queries: remove the known reason %q", from.Name, kernel, all, known)
	case known != "":
		proctest.Figure(t, "%s: the kernel answers %d of %d queries, as known: %s", from.Name, kernel, all, known)
	case few:
		t.Errorf("%s: the kernel answers %d of %d queries: %s", from.Name, kernel, all, r.adminPage(t, "/status"))
	default:
		proctest.Figure(t, "%s: the kernel answers %d of %d queries", from.Name, kernel, all)
	}
}

// expectProblem has a pod ask until /status has a problem.
func (r *rig) expectProblem(t *testing.T, from *pod, problem string) {
	t.Helper()
	m := r.startMeter(t, from)
	defer m.Stop()
	took := proctest.Eventually(t, limit, "/status names the problem", func() bool { return strings.Contains(r.adminPage(t, "/status"), problem) },
		func() string { return r.adminPage(t, "/status") })
	proctest.Figure(t, "/status names the problem after %s", ms(took))
}

// askAndCount has a pod ask for two seconds, and returns how many queries the kernel has answered, and how many there were.
func (r *rig) askAndCount(t *testing.T, from *pod) (kernel, all int) {
	t.Helper()
	const queries = 400
	kernelBefore, allBefore := r.replies(t)
	m, err := nodetest.StartMeter(nodetest.MeterConfig{
		Host: from.Host, Target: r.target, Loads: []nodetest.Load{{Network: "udp", Rate: queries / 2, Fresh: true}},
	})
	assert.NoError(t, err)
	t.Cleanup(func() { m.Stop() })
	proctest.Eventually(t, limit, "the pod has asked", func() bool { return m.Report().Sent() >= queries })
	report := m.Stop()
	proctest.Eventually(t, limit, "the answers are counted", func() bool {
		kernel, all = r.replies(t)
		kernel, all = kernel-kernelBefore, all-allBefore
		return all >= report.Count(nodetest.Answered)
	})
	return kernel, all
}

// replies returns the replies of the kernel, as of the agent's last count, and those of all sources.
func (r *rig) replies(t *testing.T) (kernel, all int) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^nodecache_responses_total\{.*source="([^"]*)".*\} (\d+)$`)
	for _, m := range line.FindAllStringSubmatch(r.adminPage(t, "/metrics"), -1) {
		n, _ := strconv.Atoi(m[2]) // it has digits only
		all += n
		if m[1] == "kernel" {
			kernel += n
		}
	}
	return kernel, all
}
