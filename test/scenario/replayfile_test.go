// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/nodecache/node-cache/internal/assert"
)

// TestReplay plays a file of our own, and that file with something else in it.
func TestReplay(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/replay.rpl")
	assert.NoError(t, err)
	tests := []struct {
		name, old, changed string
		want               []string
	}{
		{"as it is", "", "", nil},
		{"another TTL", "A 10.0.0.1\nENTRY_END\n\n", "A 10.0.0.9\nENTRY_END\n\n", []string{
			"2: answers [www.example. 60 in a 10.0.0.1], not [www.example. 60 in a 10.0.0.9]",
		}},
		{"another upstream", "CHECK_OUT_QUERY ADDRESS 192.0.2.1", "CHECK_OUT_QUERY ADDRESS 192.0.2.2", []string{
			"32: no such query to an upstream; waiting: 192.0.2.1 www.example. A, 192.0.2.1 www.example. A, 192.0.2.1 www.example. A",
			"37: answers [www.example. 0 in a 10.0.0.1], not [www.example. 0 in a 10.0.0.2]", // 10 s later
		}},
		{"another error", "ede=3", "ede=19", []string{"33: EDE 3, not 19"}},
		{"an answer less", "STEP 36 QUERY", "STEP 36 NOTHING", []string{"37: no reply; upstreams have not answered 192.0.2.1 www.example. A"}},
		{"an answer more", "STEP 37 CHECK_ANSWER", "STEP 37 NOTHING", []string{"51: a reply more: NOERROR [www.example. 60 in a 10.0.0.2]"}},
		{"an SOA record more", "AUTHORITY\nstub.example. IN", "AUTHORITY\n. IN SOA ns host 1 2 3 4 5\nstub.example. IN", []string{
			"41: SOA [stub.example. 0 in soa ns. host. 1 2 3 4 5], not [. 0 in soa ns. host. 1 2 3 4 5, stub.example. 0 in soa ns. host. 1 2 3 4 5]",
		}},
		{"another flag", "REPLY QR AA RD RA", "REPLY QR RD RA", []string{"51: flags aa,rd,ra, not rd,ra"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			changed := strings.Replace(string(text), tt.old, tt.changed, 1)
			if changed == string(text) != (tt.old == "") {
				t.Fatalf("%q does not change the file", tt.old)
			}
			r, err := parseReplay(changed)
			assert.NoError(t, err)
			m, err := mapOptions(r.options)
			assert.NoError(t, err)
			synctest.Test(t, func(t *testing.T) {
				if diff := cmp.Diff(tt.want, playReplay(t, r, m)); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// TestReplayErrors says where a file is wrong, and which scenarios are not played.
func TestReplayErrors(t *testing.T) {
	t.Parallel()
	const rest = "CONFIG_END\nSTEP 1 NOTHING\nSCENARIO_END\n"
	tests := []struct{ name, text, want string }{
		{"no end of the configuration", "server:\n", "line 2: no CONFIG_END"},
		{"no end", "CONFIG_END\nSTEP 1 NOTHING", "line 2: no SCENARIO_END"},
		{"no number", "CONFIG_END\nSTEP one NOTHING\n", `line 2: strconv.Atoi: parsing "one": invalid syntax`},
		{"no such flag", "CONFIG_END\nSTEP 1 QUERY\nENTRY_BEGIN\nREPLY XX\n", "line 4: no such flag: XX"},
		{"a cut entry", "CONFIG_END\nRANGE_BEGIN 1 2\nENTRY_BEGIN\nMATCH all", "line 4: no ENTRY_END"},
		{"calculated time", "CONFIG_END\nSTEP 1 TIME_PASSES EVAL ${1}\n", "line 2: not readable here: a calculated time"},
		{"validation", "server: trust-anchor: \"x\"\n" + rest, "needs server: trust-anchor"},
		{"policy zone", "rpz: name: x\n" + rest, "needs rpz"},
		{"trust anchors in a file", "AUTOTRUST_FILE x\nserver:\nAUTOTRUST_END\n" + rest, "needs file: AUTOTRUST_FILE"},
		{"zone without a counterpart", "server: local-zone: x. inform\n" + rest, "needs a local zone of type inform"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, err := parseReplay(tt.text)
			if err == nil {
				_, err = mapOptions(r.options)
			}
			if err == nil || err.Error() != tt.want {
				t.Errorf("error %v, want %q", err, tt.want)
			}
		})
	}
}
