// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/nodecache/node-cache/internal/assert"
)

// An outcome is why a scenario of unbound does not play as it is written.
type outcome struct {
	steps  string // the ones that differ; empty: the scenario is not played
	reason string
}

// Reasons of several scenarios.
const (
	lame      = "its subject is recursion: servers that are lame, or without an address that is known and right"
	cuts      = "its subject is recursion: which server knows what at a zone cut"
	minimised = "its subject is recursion: QNAME minimisation (RFC 9156)"
	primes    = "its subject is recursion: it checks the queries to root servers, or to each server of a zone"
	rejects   = "its subject is recursion: what an authoritative server may not say"

	attempts   = "an agent makes fewer attempts: a client gets SERVFAIL after limits.deadline"
	unanswered = "a reply without an answer to the question is a failure of the upstream, so SERVFAIL if all give such replies"
	otherRcode = "rcodes but NOERROR and NXDOMAIN are failures of an upstream, so SERVFAIL"
	above      = "a query above a limit gets SERVFAIL; unbound drops it, or an older one for it"
	staleAfter = "unbound serves stale at once; an agent waits cache.serveStale.after for upstreams first (RFC 8767 section 5)"
	ends       = "unbound serves an answer in the second in which its TTL ends; an agent does not"
	validated  = "answers to queries with CD are kept apart from others: the upstream has not validated them"
	private    = "reverse names of private addresses go to the upstreams of their route: clusters have such zones"
)

// unboundOutcomes has the scenarios that differ, with the reason, and those that are not played although an agent has all their options.
// All others must play as they are written.
var unboundOutcomes = map[string]outcome{
	"fwd_0ttlservfail": {"220", ends},
	"fwd_any":          {"60 64 120 150", "queries of type ANY get HINFO (RFC 8482 section 4.2)"},
	"fwd_droptoomany":  {"10", above},
	"fwd_error":        {"5 6", attempts},
	"fwd_jostle":       {"11", above},
	"fwd_jostle_out":   {"10 12", above},
	"fwd_minimal":      {"34", "without RD a name that is not held is refused; unbound gives a referral that it holds"},
	"fwd_timeout":      {"5 6", attempts},

	"serve_expired":                            {"40", "without RD there is no stale answer before a refresh has failed"},
	"serve_expired_reply_ttl":                  {"40", staleAfter},
	"serve_expired_zerottl":                    {"49", staleAfter},
	"serve_expired_client_timeout_no_prefetch": {"21", ends},
	"iter_prefetch_fail":                       {"200", "a prefetch that fails is not repeated: the answer is fetched when it has expired"},

	"ttl_max": {"26", validated},
	"ttl_min": {"26", validated},
	// And an answer has one TTL, the least of its records; unbound holds sets of records, which other answers renew.
	"ttl_msg": {"36 41 56", validated},

	"ede_localzone_dname_expansion": {"10", "a template that makes a name too long fails: SERVFAIL"},
	"local_ds":                      {"10", private},
	// 4, 65: classes but IN have no records. 6, 14: a template denies the names between. 12, 16: and has no SOA record of its own.
	// 31 to 37: localhost. 39: see private. 67: a query that unbound drops has a reply.
	"localdata":  {"4 6 12 14 16 31 33 35 37 39 65 67", "hosts and templates are no zone"},
	"refuse_xfr": {"2 4", "replies have RA, those that refuse AXFR too; IXFR has an SOA record (RFC 1995 section 3)"},

	"iter_dname_insec":   {"221002", "an alias that leads back to itself within an answer is passed on"},
	"iter_dname_yx":      {"229004", otherRcode},
	"iter_scrub_ns":      {"10", unanswered},
	"iter_scrub_ns_fwd":  {"10", unanswered},
	"iter_scrub_ns_side": {"10 30", unanswered},

	"fetch_glue_cname": {"", lame}, "iter_got6only": {"", lame}, "iter_lame_noaa": {"", lame}, "iter_lame_nosoa": {"", lame},
	"iter_pc_aaaa": {"", lame}, "iter_pcdiff": {"", lame}, "iter_pcdirect": {"", lame}, "iter_pcname": {"", lame},
	"iter_pcnamech": {"", lame}, "iter_pcnamechrec": {"", lame}, "iter_pcnamerec": {"", lame}, "iter_ranoaa_lame": {"", lame},
	"iter_ds_locate_ns": {"", cuts}, "iter_ds_locate_ns_cname": {"", cuts}, "iter_ds_locate_ns_nosoa": {"", cuts},
	"iter_ghost_timewindow": {"", cuts}, "iter_prefetch_change2": {"", cuts},
	"iter_resolve_minimised": {"", minimised}, "iter_resolve_minimised_nx": {"", minimised},
	"iter_resolve_minimised_refused": {"", minimised}, "iter_resolve_minimised_timeout": {"", minimised},
	"iter_scrub_cname_an": {"", primes}, "iter_scrub_dname_insec": {"", primes}, "iter_timeout_ra_aaaa": {"", primes},
	"iter_auth_tc": {"", rejects}, "iter_req_qname": {"", rejects}, "trust_cname_chain": {"", rejects},
}

// TestUnbound plays the scenarios of unbound's own tests, from Debian's source package.
func TestUnbound(t *testing.T) {
	t.Parallel()
	if os.Getenv("SOAK") == "" {
		t.Skip("fetches the source of unbound: set SOAK")
	}
	folder, err := unboundScenarios(t.Context())
	if err != nil {
		t.Skipf("no source of unbound: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(folder, "*.rpl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in %s: %v", folder, err)
	}
	var mu sync.Mutex
	count := map[string]int{} // by reason
	t.Cleanup(func() {
		for reason, n := range count {
			t.Logf("%3d %s", n, reason)
		}
	})
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".rpl")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result := playUnbound(t, file, unboundOutcomes[name])
			mu.Lock()
			defer mu.Unlock()
			count[result]++
		})
	}
	for name := range unboundOutcomes {
		if !slices.Contains(files, filepath.Join(folder, name+".rpl")) {
			t.Errorf("there is no scenario %s", name)
		}
	}
}

// playUnbound plays a file, compares the steps that differ with the expected ones, and says what came of it.
func playUnbound(t *testing.T, file string, want outcome) string {
	t.Helper()
	text, err := os.ReadFile(file)
	assert.NoError(t, err)
	r, err := parseReplay(string(text))
	m, needs := mapOptions(r.options)
	if needs == nil && errors.Is(err, errNotReadable) {
		needs = err
	}
	if needs != nil {
		if want != (outcome{}) {
			t.Errorf("listed, although it is not played: %v", needs)
		}
		return "not applicable: " + needs.Error()
	}
	assert.NoError(t, err)
	if want.reason != "" && want.steps == "" {
		return "not applicable: " + want.reason
	}
	var differences, steps []string
	synctest.Test(t, func(t *testing.T) { differences = playReplay(t, r, m) })
	for _, d := range differences {
		number, _, _ := strings.Cut(d, ":")
		if !slices.Contains(steps, number) {
			steps = append(steps, number)
		}
	}
	if got := strings.Join(steps, " "); got != want.steps {
		t.Errorf("steps %q differ, want %q:\n%s", got, want.steps, strings.Join(differences, "\n"))
	}
	switch {
	case t.Failed():
		return "fail"
	case want.steps == "":
		return "pass"
	}
	return "differ for a known reason"
}

// unboundSource is the release of Debian whose unbound the outcomes are of. All its updates have the same scenarios.
const unboundSource = `Types: deb-src
URIs: http://deb.debian.org/debian
Suites: bookworm
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
`

// unboundScenarios returns a folder of unbound's scenarios. It fetches them once, through apt, which proves the signature, and keeps
// them in the user's cache folder. The state of the machine's apt stays as it is.
func unboundScenarios(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache folder: %w", err)
	}
	folder := filepath.Join(cache, "node-cache", "unbound-bookworm")
	if _, err := os.Stat(folder); err == nil {
		return folder, nil
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	work, err := os.MkdirTemp(filepath.Dir(folder), "unbound-")
	if err != nil {
		return "", fmt.Errorf("making a folder: %w", err)
	}
	defer func() { _ = os.RemoveAll(work) }()
	for _, sub := range []string{"lists/partial", "archives/partial", "scenarios"} {
		if err := os.MkdirAll(filepath.Join(work, sub), 0o755); err != nil {
			return "", fmt.Errorf("making apt's folders: %w", err)
		}
	}
	sources := filepath.Join(work, "debian.sources")
	if err := os.WriteFile(sources, []byte(unboundSource), 0o600); err != nil {
		return "", fmt.Errorf("making apt's files: %w", err)
	}
	apt := []string{"apt-get", "-q"}
	for _, option := range []string{
		"APT::Sandbox::User=" + os.Getenv("USER"), "Acquire::Languages=none", "Dir::State::lists=" + filepath.Join(work, "lists"),
		"Dir::Cache=" + work, "Dir::Etc::sourcelist=" + sources, "Dir::Etc::sourceparts=/dev/null",
	} {
		apt = append(apt, "-o", option)
	}
	for _, command := range [][]string{
		append(slices.Clone(apt), "update"),
		append(slices.Clone(apt), "--only-source", "--download-only", "source", "unbound"),
		{"sh", "-c", "tar -xzf unbound_*.orig.tar.gz --strip-components=2 -C scenarios --wildcards '*/testdata/*.rpl'"},
	} {
		cmd := exec.CommandContext(ctx, command[0], command[1:]...)
		cmd.Dir = work
		if out, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("running %s: %w: %s", command[0], err, bytes.TrimSpace(out))
		}
	}
	if err := os.Rename(filepath.Join(work, "scenarios"), folder); err != nil {
		return "", fmt.Errorf("keeping the scenarios: %w", err)
	}
	return folder, nil
}
