// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// load is what dnsperf says of one run.
type load struct {
	sent, completed, lost int
	codes                 string // "NOERROR 123 (100.00%)"
	rate                  float64
}

// String is the load in a few words.
func (l load) String() string {
	return fmt.Sprintf("%d lost of %d queries, %.0f a second", l.lost, l.sent, l.rate)
}

// mixedNames writes queries for dnsperf: mostly names that stay in the cache, and some that expire within seconds,
// so that queries wait for the upstream at every moment.
func mixedNames(t *testing.T) string {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	for range 50_000 {
		if random.IntN(10) == 0 {
			fmt.Fprintf(&b, "n%d.short.e2e.test A\n", random.IntN(10_000))
		} else {
			fmt.Fprintf(&b, "n%d.wild.e2e.test A\n", random.IntN(1_000))
		}
	}
	return writeFile(t, filepath.Join(t.TempDir(), "names"), b.String())
}

// dnsperf loads the server as fast as it answers.
func dnsperf(t *testing.T, server, names string, length time.Duration) load {
	t.Helper()
	host, port := splitPort(t, server)
	cmd := exec.CommandContext(t.Context(), proctest.FindProgram(t, "dnsperf", "dnsperf"), "-s", host, "-p", strconv.Itoa(port),
		"-d", names, "-l", strconv.Itoa(int(length.Seconds())), "-c", "8", "-T", "1", "-q", "200", "-t", "5")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("dnsperf: %v\n%s", err, out)
		return load{}
	}
	text := string(out)
	number := func(label string) float64 {
		m := regexp.MustCompile(regexp.QuoteMeta(label) + `:\s+([\d.]+)`).FindStringSubmatch(text)
		if m == nil {
			t.Errorf("dnsperf printed no %q:\n%s", label, text)
			return 0
		}
		n, _ := strconv.ParseFloat(m[1], 64) // the pattern matches numbers only
		return n
	}
	l := load{
		sent: int(number("Queries sent")), completed: int(number("Queries completed")),
		lost: int(number("Queries lost")), rate: number("Queries per second"),
	}
	if m := regexp.MustCompile(`Response codes:\s+(.*)`).FindStringSubmatch(text); m != nil {
		l.codes = strings.TrimSpace(m[1])
	}
	return l
}
