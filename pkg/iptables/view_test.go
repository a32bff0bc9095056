// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netns"
)

func TestContent(t *testing.T) {
	t.Parallel()
	saved := strings.Split(`# Generated
*nat
:PREROUTING ACCEPT [12:34]
:NODE-CACHE-DNAT - [0:0]
:NODE-CACHE-DNAT-MORE - [0:0]
-A PREROUTING -j NODE-CACHE-DNAT
-A NODE-CACHE-DNAT -p udp -j DNAT --to-destination 10.0.0.1:53
-A NODE-CACHE-DNAT -p udp -j DNAT --to-destination [fd00::1]:53
-A NODE-CACHE-DNAT -p tcp -j DNAT --to-destination 10.0.0.1:53
-A NODE-CACHE-DNAT -m set --match-set node-cache-lease4 dst -j DNAT --to-destination 10.0.0.9:53
-A NODE-CACHE-DNAT-MORE -j ACCEPT
COMMIT`, "\n")
	listed := []string{
		"-P PREROUTING ACCEPT", "-A PREROUTING -j NODE-CACHE-DNAT", "-N NODE-CACHE-DNAT",
		"-A NODE-CACHE-DNAT -p udp -j DNAT --to-destination 10.0.0.1:53",
		"-A NODE-CACHE-DNAT -p udp -j DNAT --to-destination [fd00::1]:53",
		"-A NODE-CACHE-DNAT -p tcp -j DNAT --to-destination 10.0.0.1:53",
		"-A NODE-CACHE-DNAT -m set --match-set node-cache-lease4 dst -j DNAT --to-destination 10.0.0.9:53",
	}
	want := content{
		{"nat", "PREROUTING"}: {"-j NODE-CACHE-DNAT"},
		{"nat", "NODE-CACHE-DNAT"}: {
			"-p udp -j DNAT --to-destination 10.0.0.1:53", "-p udp -j DNAT --to-destination [fd00::1]:53",
			"-p tcp -j DNAT --to-destination 10.0.0.1:53",
			"-m set --match-set node-cache-lease4 dst -j DNAT --to-destination 10.0.0.9:53",
		},
	}
	for name, lines := range map[string][]string{"saved": saved, "listed": listed} {
		got := content{}
		got.add("nat", lines, []string{"PREROUTING", "NODE-CACHE-DNAT"})
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got, want := got.fallback(), addrPorts("10.0.0.1:53", "[fd00::1]:53"); !slices.Equal(got, want) {
			t.Errorf("%s: fallback %v, want %v", name, got, want)
		}
		if got := got.count(false); got != 5 {
			t.Errorf("%s: %d rules, want 5", name, got)
		}
	}
}

// FuzzContent gives texts that are not iptables', and checks what was read by writing it again.
func FuzzContent(f *testing.F) {
	f.Add(":A - [0:0]\n-A A -j B\n-A B x\n")
	f.Add("-P A ACCEPT\n-A A\n-A  A\n:A\n: A")
	f.Fuzz(func(t *testing.T, text string) {
		lines := strings.Split(text, "\n")
		got := content{}
		got.add("t", lines, []string{"A"})
		var want []string // line by line, by the simplest means
		for _, line := range lines {
			if line == "-A A" {
				want = append(want, "")
			} else if rule, ok := strings.CutPrefix(line, "-A A "); ok {
				want = append(want, rule)
			}
		}
		if !slices.Equal(got[chainID{"t", "A"}], want) || len(got) > 1 {
			t.Errorf("read %q, want only %q", got, want)
		}
	})
}

func TestChanges(t *testing.T) {
	t.Parallel()
	chains := []chain{{table: "nat", name: "OURS", hooks: []string{"PREROUTING"}, rules: []string{"-j ACCEPT"}}}
	none := []chain{{table: "nat", name: "OURS", hooks: []string{"PREROUTING"}}}
	pre, ours := chainID{"nat", "PREROUTING"}, chainID{"nat", "OURS"}
	for _, tc := range []struct {
		name string
		have content
		want []chain
		text string
	}{
		{"nothing there", content{}, chains, "*nat\n:OURS - [0:0]\n-A OURS -j ACCEPT\n-I PREROUTING 1 -j OURS\nCOMMIT\n"},
		{"all there", content{pre: {"-j OURS"}, ours: {"-j ACCEPT"}}, chains, ""},
		{"others' rules in front", content{pre: {"-j CALI", "-j OURS"}, ours: {"-j ACCEPT"}}, chains, ""},
		{"kube-proxy in front", content{pre: {"-j KUBE-SERVICES", "-j OURS"}, ours: {"-j ACCEPT"}}, chains, "*nat\n-D PREROUTING -j OURS\n-I PREROUTING 1 -j OURS\nCOMMIT\n"},
		{"jump gone", content{pre: {"-j X"}, ours: {"-j ACCEPT"}}, chains, "*nat\n-I PREROUTING 1 -j OURS\nCOMMIT\n"},
		{"jump thrice", content{pre: {"-j OURS", "-j X", "-j OURS", "-j OURS"}, ours: {"-j ACCEPT"}}, chains, "*nat\n-D PREROUTING -j OURS\n-D PREROUTING -j OURS\n-D PREROUTING -j OURS\n-I PREROUTING 1 -j OURS\nCOMMIT\n"},
		{"chain empty", content{pre: {"-j OURS"}, ours: {}}, chains, "*nat\n:OURS - [0:0]\n-A OURS -j ACCEPT\nCOMMIT\n"},
		{"a rule more", content{pre: {"-j OURS"}, ours: {"-j ACCEPT", "-j DROP"}}, chains, "*nat\n:OURS - [0:0]\n-A OURS -j ACCEPT\nCOMMIT\n"},
		{"to be removed", content{pre: {"-j OURS", "-j X"}, ours: {"-j ACCEPT"}}, none, "*nat\n-D PREROUTING -j OURS\n-F OURS\n-X OURS\nCOMMIT\n"},
		{"nothing to remove", content{pre: {"-j X"}}, none, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.text, (&variantTables{}).changes(false, tc.have, tc.want)); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPrintedDifferently: another version of iptables may print a rule in other words. What it
// printed right after a write equals what was written, and nothing else does.
func TestPrintedDifferently(t *testing.T) {
	t.Parallel()
	s := &variantTables{}
	chains := []chain{{table: "raw", name: "OURS", rules: []string{"-j CT --notrack"}}}
	have := content{{"raw", "OURS"}: {"-j NOTRACK"}}
	if s.changes(false, have, chains) == "" {
		t.Error("other words before the first write are no change")
	}
	s.written[0], s.printed[0] = chains, content{{"raw", "OURS"}: {"-j NOTRACK"}}
	if got := s.changes(false, have, chains); got != "" {
		t.Errorf("the words printed after the write are a change:\n%s", got)
	}
	if s.changes(true, have, chains) == "" {
		t.Error("the words of the other family are no change")
	}
	have[chainID{"raw", "OURS"}] = []string{"-j ACCEPT"}
	if s.changes(false, have, chains) == "" {
		t.Error("another rule is no change")
	}
	if s.printed[0] = (content{{"raw", "OURS"}: {}}); s.changes(false, content{{"raw", "OURS"}: {}}, chains) == "" {
		t.Error("a chain that was empty right after the write is no change")
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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("drops (-want +got):\n%s", diff)
	}
}
