// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/proctest"
)

// digReply is what dig printed, read back.
type digReply struct {
	status    string
	flags     []string
	cookie    string   // the cookie as dig judges it, "… (good)"
	answer    []string // "name class type data" without the TTL, sorted
	authority []string // likewise
	overTCP   bool
	raw       string
}

var (
	digStatus = regexp.MustCompile(`, status: (\w+),`)
	digFlags  = regexp.MustCompile(`(?m)^;; flags:([^;]*);`)
	digCookie = regexp.MustCompile(`(?m)^; COOKIE: (.*)$`)
	digServer = regexp.MustCompile(`(?m)^;; SERVER: .*\((TCP|UDP)\)$`)
)

// dig asks the server with dig and the given arguments. One try, so that a lost answer is seen.
func dig(t *testing.T, server string, args ...string) digReply {
	t.Helper()
	host, port, err := net.SplitHostPort(server)
	if err != nil {
		t.Fatal(err)
	}
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
	if m := digFlags.FindStringSubmatch(text); m != nil {
		r.flags = strings.Fields(m[1])
	}
	if m := digCookie.FindStringSubmatch(text); m != nil {
		r.cookie = m[1]
	}
	if m := digServer.FindStringSubmatch(text); m != nil {
		r.overTCP = m[1] == "TCP"
	}
	r.answer, r.authority = digSection(text, "ANSWER"), digSection(text, "AUTHORITY")
	return r
}

// digSection lists the records of a section.
func digSection(text, name string) []string {
	_, rest, ok := strings.Cut(text, ";; "+name+" SECTION:\n")
	if !ok {
		return nil
	}
	rest, _, _ = strings.Cut(rest, "\n\n")
	var records []string
	for line := range strings.Lines(rest) {
		if f := strings.Fields(line); len(f) >= 4 {
			records = append(records, strings.Join(slices.Delete(f, 1, 2), " "))
		}
	}
	slices.Sort(records)
	return records
}

// has reports whether the header carries the flag.
func (r digReply) has(flag string) bool { return slices.Contains(r.flags, flag) }
