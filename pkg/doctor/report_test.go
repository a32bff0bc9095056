// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/doctor"
)

// TestHostileReport has text of others in each field, as the names of processes and links are, and errors.
func TestHostileReport(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a\n  ok    pods  forged", "\x1b[32mok\x1b[0m", "\u009b2J\x9b2J", "\u202eko\u2028b\u2029c\r\td", "\x00\x7f\xff"} {
		report := doctor.Report{Title: text, Lines: []doctor.Line{{Part: text, Check: text, Verdict: doctor.Fail, What: text, Fix: text}}}
		for _, colored := range []bool{false, true} {
			var out strings.Builder
			assert.NoError(t, report.Text(&out, colored))
			got := out.String()
			if colored {
				got = strings.Replace(strings.Replace(got, "\x1b[31m", "", 1), "\x1b[0m", "", 1)
			}
			if strings.ContainsFunc(got, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }) || strings.Count(got, "\n") != 7 {
				t.Errorf("the report steers a terminal, or has a forged line: %q", got)
			}
		}
		var out strings.Builder
		assert.NoError(t, report.JSON(&out))
		if strings.ContainsFunc(out.String(), func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }) {
			t.Errorf("the JSON steers a terminal: %q", out.String())
		}
		var got doctor.Report
		if err := json.Unmarshal([]byte(strings.Replace(out.String(), `"verdict": "fail"`, `"verdict": 0`, 1)), &got); err != nil || got.Title != strings.ToValidUTF8(text, "\ufffd") {
			t.Errorf("the JSON has the title %q, want %q, error %v", got.Title, text, err)
		}
	}
}
