// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/config"
)

// fill repeats item up to nearly the size that a file may have.
func fill(item func(i int) string) string {
	var b strings.Builder
	for i := 0; b.Len() < 1<<20-1000; i++ {
		b.WriteString(item(i))
	}
	return b.String()
}

// BenchmarkParse has the usual file beside the largest ones of each kind: the time must not grow faster than the size.
func BenchmarkParse(b *testing.B) {
	for _, bb := range []struct {
		name, text string
		good       bool
	}{
		{name: "reference", good: true, text: string(reference(b))},
		{
			name: "addresses", good: true,
			text: "listen: {addresses: [" + fill(func(i int) string { return fmt.Sprintf("'2001:db8::%x:%x',", i>>16, i&0xFFFF) }) + "]}",
		},
		{
			name: "routes", good: true,
			text: "forward:\n- {zone: ., to: [192.0.2.1]}\n" + fill(func(i int) string { return fmt.Sprintf("- {zone: z%d, to: [192.0.2.1]}\n", i) }),
		},
		{
			name: "namespaces", good: true,
			text: "cluster: {namespaces: [" + fill(func(i int) string { return fmt.Sprintf("n%d,", i) }) + "]}",
		},
		{
			name: "a label selector", good: true,
			text: "cluster: {serviceSelector: 'app in (" + fill(func(i int) string { return fmt.Sprintf("a%d,", i) }) + "z)'}",
		},
		{
			name: "label selectors", good: true,
			text: "cluster: {serviceSelector: '" + fill(func(i int) string { return fmt.Sprintf("a%d=b,", i) }) + "z'}",
		},
		{name: "bad routes", text: "forward:\n" + fill(func(int) string { return "- {}\n" })},
		{name: "unknown keys", text: fill(func(i int) string { return fmt.Sprintf("cach%d:\n", i) })},
		{name: "repeated keys", text: fill(func(int) string { return "kind: Config\n" })},
	} {
		b.Run(bb.name, func(b *testing.B) {
			text := []byte(bb.text)
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := config.Parse(text, config.Agent); (err == nil) != bb.good {
					b.Fatalf("Parse: error %.200v, want none: %t", err, bb.good)
				}
			}
		})
	}
}
