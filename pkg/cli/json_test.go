// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/cli"
)

func TestReadJSON(t *testing.T) {
	t.Parallel()
	nested := func(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }
	for _, tt := range []struct{ name, text, want string }{
		{"an object", `{"a": {"b": [1, "x", null, true]}}`, ""},
		{"the most levels", nested(16), ""},
		{"a level more", nested(17), "JSON with more than 16 levels"},
		{"levels without an end", strings.Repeat(`{"a":[`, 1<<20), "JSON with more than 16 levels"},
		{"deep at the end", `{"a":[` + strings.Repeat("0,", 1000) + nested(9900) + `]}`, "JSON with more than 16 levels"},
		{"empty objects", "[" + strings.Repeat("{},", 1<<20) + "{}]", "JSON with more than 262144 tokens"},
		{"numbers", "[" + strings.Repeat("0,", 1<<20) + "0]", "JSON with more than 262144 tokens"},
		{"keys", "{" + strings.Repeat(`"":0,`, 1<<18) + `"":0}`, "JSON with more than 262144 tokens"},
		{"documents", strings.Repeat("0 ", 1<<20), "JSON with more than 262144 tokens"},
		{"one long text", `"` + strings.Repeat("x", 4<<20) + `"`, ""},
		{"nothing", "", "unexpected end of JSON input"},
		{"no end", `{"a": [`, "unexpected end of JSON input"},
		{"no JSON", "<html>", "invalid character '<' looking for beginning of value"},
		{"two documents", "{} {}", "invalid character '{' after top-level value"},
		{"a brace too many", "{}}", "invalid character '}' after top-level value"},
	} {
		var v any
		got := ""
		if err := cli.ReadJSON([]byte(tt.text), &v); err != nil {
			got = err.Error()
		}
		assert.Equal(t, tt.name, tt.want, got)
	}
}

// FuzzReadJSON compares with encoding/json, and bounds what the indented text takes.
func FuzzReadJSON(f *testing.F) {
	for _, text := range []string{`{"a":[1,2]}`, "[[[]]]", "{}{}", strings.Repeat("[", 20), `{"a":{"a":{"a":1e999}}}`, "\xff", `"\ud800"`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var got, want any
		err, wantErr := cli.ReadJSON(text, &got), json.Unmarshal(text, &want)
		if err != nil && strings.HasPrefix(err.Error(), "JSON with more than 16 levels") {
			if bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) <= 16 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || !reflect.DeepEqual(got, want) {
			t.Fatalf("%q: got %v, %v; want %v, %v", text, got, err, want, wantErr)
		}
		var indented bytes.Buffer
		if err == nil && (json.Indent(&indented, text, "", "  ") != nil || indented.Len() > 40*len(text)) {
			t.Fatalf("%q: indented it has %d bytes", text, indented.Len())
		}
	})
}
