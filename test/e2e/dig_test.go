// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// digReply is what dig printed, read back.
type digReply struct {
	status string
	cookie string   // the cookie as dig judges it, "… (good)"
	answer []string // "name class type data" without the TTL, sorted
	raw    string
}

var (
	digStatus = regexp.MustCompile(`, status: (\w+),`)
	digCookie = regexp.MustCompile(`(?m)^; COOKIE: (.*)$`)
)

// dig asks the server with dig and the given arguments. One try, so that a lost answer is seen.
func dig(t *testing.T, server string, args ...string) digReply {
	t.Helper()
	host, port, err := net.SplitHostPort(server)
	assert.NoError(t, err)
	args = append([]string{"@" + host, "-p", port, "+tries=1", "+time=5"}, args...)
	out, err := exec.CommandContext(t.Context(), proctest.FindProgram(t, "dig", "bind9-dnsutils"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("dig %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return parseDig(string(out))
}

// parseDig reads dig's usual output.
func parseDig(text string) digReply {
	r := digReply{raw: text}
	if m := digStatus.FindStringSubmatch(text); m != nil {
		r.status = m[1]
	}
	if m := digCookie.FindStringSubmatch(text); m != nil {
		r.cookie = m[1]
	}
	_, rest, _ := strings.Cut(text, ";; ANSWER SECTION:\n")
	rest, _, _ = strings.Cut(rest, "\n\n")
	for line := range strings.Lines(rest) {
		if f := strings.Fields(line); len(f) >= 4 {
			r.answer = append(r.answer, strings.Join(slices.Delete(f, 1, 2), " "))
		}
	}
	slices.Sort(r.answer)
	return r
}

// TestDigCookie has dig judge the agent's cookies (RFC 7873).
func TestDigCookie(t *testing.T) {
	t.Parallel()
	a := startAgent(t, settings{to: []string{startScripted(t, answerA)}})
	cookie := "0123456789abcdef"
	for range 2 { // the client's own, then the server's
		got := dig(t, a.addr, "cookie.e2e.test", "A", "+cookie="+cookie)
		if got.status != "NOERROR" || !strings.HasPrefix(got.cookie, cookie[:16]) || !strings.HasSuffix(got.cookie, "(good)") {
			t.Errorf("status %s, cookie %q, want the client's, completed\n%s", got.status, got.cookie, got.raw)
		}
		cookie, _, _ = strings.Cut(got.cookie, " ")
	}
}
