// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/intercept/rules"
)

func TestSelectLines(t *testing.T) {
	t.Parallel()
	const saved = `# Generated
*nat
:PREROUTING ACCEPT [12:34]
:OUTPUT ACCEPT [0:0]
:NODE-CACHE-DNAT - [0:0]
:NODE-CACHE-DNAT-MORE - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -j NODE-CACHE-DNAT
-A OUTPUT -j NODE-CACHE-DNAT
-A OUTPUT -j KUBE-SERVICES
-A NODE-CACHE-DNAT -p udp -j DNAT --to-destination 10.0.0.1:53
-A NODE-CACHE-DNAT -p udp -j DNAT --to-destination [fd00::1]:53
-A NODE-CACHE-DNAT -p tcp -j DNAT --to-destination 10.0.0.1:53
-A NODE-CACHE-DNAT -m set --match-set node-cache-lease4 dst -j DNAT --to-destination 10.0.0.9:53
-A NODE-CACHE-DNAT-MORE -j NODE-CACHE-DNAT
COMMIT`
	listed := strings.NewReplacer(":PREROUTING ACCEPT [12:34]", "-P PREROUTING ACCEPT", ":NODE-CACHE-DNAT - [0:0]", "-N NODE-CACHE-DNAT").Replace(saved)
	want := []string{
		"-N NODE-CACHE-DNAT",
		"-A NODE-CACHE-DNAT -p udp -j DNAT --to-destination 10.0.0.1:53", "-A NODE-CACHE-DNAT -p udp -j DNAT --to-destination [fd00::1]:53",
		"-A NODE-CACHE-DNAT -p tcp -j DNAT --to-destination 10.0.0.1:53",
		"-A NODE-CACHE-DNAT -m set --match-set node-cache-lease4 dst -j DNAT --to-destination 10.0.0.9:53",
		"-A OUTPUT -j NODE-CACHE-DNAT",
		`-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES`, "-A PREROUTING -j NODE-CACHE-DNAT",
	}
	for name, text := range map[string]string{"saved": saved, "listed": listed} {
		got := selectLines("nat", strings.Split(text, "\n"), plan(&rules.Rules{}, false, false))
		assert.Same(t, name, want, got)
		lines := map[string][]string{"nat": got}
		if got, want := fallbackTargets(lines), addrPorts("10.0.0.1:53", "[fd00::1]:53"); !slices.Equal(got, want) {
			t.Errorf("%s: fallback %v, want %v", name, got, want)
		}
		assert.Same(t, name, 6, countRules(lines))
	}
}

// FuzzContent gives texts that are not iptables', and checks what was selected line by line.
func FuzzContent(f *testing.F) {
	f.Add(":A - [0:0]\n-A A -j B\n-A B x\n")
	f.Add("-P A ACCEPT\n-A A\n-A  A\n:A\n: A")
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Split(text, "\n")
		var got, want []string
		for _, line := range selectLines("t", lines, []chain{{table: "t", name: "A"}}) {
			if line != "-N A" {
				got = append(got, line)
			}
		}
		for _, line := range lines {
			if line == "-A A" || strings.HasPrefix(line, "-A A ") {
				want = append(want, line)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("selected %q, want only %q", got, want)
		}
	})
}

func TestChanges(t *testing.T) {
	t.Parallel()
	chains := []chain{{table: "nat", name: "OURS", hooks: []string{"PREROUTING"}, rules: []string{"-j ACCEPT"}}}
	none := []chain{{table: "nat", name: "OURS", hooks: []string{"PREROUTING"}}}
	const n, rule, jump = "-N OURS\n", "-A OURS -j ACCEPT\n", "-A PREROUTING -j OURS\n"
	const write, removal = ":OURS - [0:0]\n-A OURS -j ACCEPT\n-I PREROUTING 1 -j OURS\nCOMMIT\n", "-D PREROUTING -j OURS\n"
	for _, tc := range []struct {
		name string
		have string // what iptables-save prints of the table
		want []chain
		text string
	}{
		{"nothing there", "", chains, "*nat\n" + write},
		{"all there", n + rule + jump, chains, ""},
		{"others' rules in front", n + rule + "-A PREROUTING -j CALI\n" + jump, chains, ""},
		{"kube-proxy behind", n + rule + jump + "-A PREROUTING -j KUBE-SERVICES\n", chains, ""},
		{"kube-proxy in front", n + rule + "-A PREROUTING -j KUBE-SERVICES\n" + jump, chains, "*nat\n" + removal + write},
		{"jump gone", n + rule + "-A PREROUTING -j X\n", chains, "*nat\n" + write},
		{"jump thrice", n + rule + jump + "-A PREROUTING -j X\n" + jump + jump, chains, "*nat\n" + removal + removal + removal + write},
		{"chain empty", n + jump, chains, "*nat\n" + removal + write},
		{"a rule more", n + rule + "-A OURS -j DROP\n" + jump, chains, "*nat\n" + removal + write},
		{"to be removed", n + rule + jump + "-A PREROUTING -j X", none, "*nat\n" + removal + "-F OURS\n-X OURS\nCOMMIT\n"},
		{"nothing to remove", "-A PREROUTING -j X\n-A PREROUTING -j KUBE-SERVICES", none, ""},
	} {
		have := map[string][]string{"nat": selectLines("nat", strings.Split(tc.have, "\n"), tc.want)}
		assert.Same(t, tc.name+": changes", tc.text, (&variantTables{}).changes(false, have, tc.want))
	}
}

// TestPrintedDifferently: another version of iptables may print a rule in other words. What it
// printed right after a write equals what was written, and nothing else does.
func TestPrintedDifferently(t *testing.T) {
	t.Parallel()
	s := &variantTables{}
	chains := []chain{{table: "raw", name: "OURS", rules: []string{"-j CT --notrack"}}}
	printed := func(rule string) map[string][]string {
		return map[string][]string{"raw": {"-N OURS", "-A OURS " + rule}}
	}
	if s.changes(false, printed("-j NOTRACK"), chains) == "" {
		t.Error("other words before the first write are no change")
	}
	s.written[0], s.printed[0] = agentLines(chains), printed("-j NOTRACK")
	assert.Same(t, "the words printed after the write are a change", "", s.changes(false, printed("-j NOTRACK"), chains))
	if s.changes(true, printed("-j NOTRACK"), chains) == "" {
		t.Error("the words of the other family are no change")
	}
	if s.changes(false, printed("-j ACCEPT"), chains) == "" {
		t.Error("another rule is no change")
	}
}

// TestHints: the errors of programs get a hint at what is missing.
func TestHints(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ message, want string }{
		{"Can't lock /run/xtables.lock: Resource temporarily unavailable Another app is currently holding the xtables lock. Stopped waiting after 1s.", ErrLocked.Error()},
		{"Fatal: can't open lock file /run/xtables.lock: Read-only file system", "XTABLES_LOCKFILE"},
		{"iptables v1.8.9 (nf_tables): Can't open socket to ipset.", "NET_RAW"},
		{"iptables v1.8.9 (legacy): can't initialize iptables table `raw': Permission denied (you must be root)", "NET_ADMIN"},
		{"iptables v1.8.9 (nf_tables): Could not fetch rule set generation id: Permission denied (you must be root)", "NET_ADMIN"},
		{"iptables v1.8.9 (legacy): can't initialize iptables table `raw': Table does not exist (do you need to insmod?)", "iptable_raw"},
		{"Warning: Extension CT revision 0 not supported, missing kernel module?", "xt_CT"},
		{"iptables v1.8.9 (nf_tables): RULE_APPEND failed (No such file or directory): rule in chain OUTPUT", "xt_set"},
		{"iptables-restore: line 9 failed: No chain/target/match by that name.", "xt_set"},
	} {
		err := withHint(errors.New(tc.message))
		if !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.message) {
			t.Errorf("%q becomes %q, want it to name %s", tc.message, err, tc.want)
		}
		if locked := strings.Contains(tc.message, "Another app"); errors.Is(err, ErrLocked) != locked {
			t.Errorf("%q is ErrLocked: %t", tc.message, !locked)
		}
	}
	if err := withHint(errors.New("odd")); err.Error() != "odd" {
		t.Errorf("an unknown problem becomes %q", err)
	}
}

func TestMissingProgram(t *testing.T) {
	t.Parallel()
	_, err := findProgram("other", false, 0, netns.None())
	if err == nil || !strings.Contains(err.Error(), "iptables-other not found") || !errors.Is(err, errNoProgram) {
		t.Errorf("error %v, want it to say which program is missing", err)
	}
}

func TestCountDrops(t *testing.T) {
	t.Parallel()
	got := map[string]uint64{}
	countDrops("iptables", `# Generated
*filter
:INPUT DROP [7:700]
:FORWARD ACCEPT [8:800]
:OURS - [0:0]
[3:30] -A INPUT -s 10.0.0.1/32 -m comment --comment "a -j DROP in words" -j ACCEPT
[4:40] -A INPUT -s 10.0.0.2/32 -j DROP
[5:50] -A INPUT -s 10.0.0.2/32 -j DROP
[6:60] -A OURS -p tcp -j REJECT --reject-with tcp-reset
[6:60] -A OURS -p tcp
[9:90] -A OURS -j DROPPER
COMMIT
`, got)
	want := map[string]uint64{
		"iptables -t filter -P INPUT DROP":                                    7,
		"iptables -t filter -A INPUT -s 10.0.0.2/32 -j DROP":                  9,
		"iptables -t filter -A OURS -p tcp -j REJECT --reject-with tcp-reset": 6,
	}
	assert.Same(t, "drops", want, got)
}
