// SPDX-License-Identifier: Apache-2.0

package dnspolicy

import (
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func TestMatchCalico(t *testing.T) {
	t.Parallel()
	set := labels.Set{"app": "web", "team.example/tier": "front"}
	tests := []struct {
		selector string
		want     Verdict
	}{
		{"", Allowed},
		{"all()", Allowed},
		{`app == "web"`, Allowed},
		{`app == 'shop'`, Denied},
		{`app != "web"`, Denied},
		{`none != "web"`, Allowed},
		{`none == ""`, Denied},
		{`app != 'a"' && app in {'web', 'a"'}`, Allowed},
		{`app in {"a"} || all`, Unknown},
		{`has(team.example/tier) && !has(none)`, Allowed},
		{`app in {"a", "web"} || has(none)`, Allowed},
		{`app not in {'a','web'}`, Denied},
		{`none not in {"a"}`, Allowed},
		{`app in {}`, Denied},
		{`!(app == "web" && has(none)) && all()`, Allowed},
		{`has(none) && has(app) || app=="web"`, Allowed},
		{`app starts with "we"`, Unknown},
		{`app contains "we"`, Unknown},
		{`global()`, Unknown},
		{`app == web`, Unknown},
		{`app`, Unknown},
		{`(app == "web"`, Unknown},
		{`app == "web" app`, Unknown},
		{`app == "web`, Unknown},
		{`app in {"a" "b"}`, Unknown},
		{`all() & all()`, Unknown},
		{`has("app")`, Unknown},
		{strings.Repeat("!", 2000) + "all()", Unknown},
	}
	for _, tt := range tests {
		if got := matchCalico(tt.selector, set); got != tt.want {
			t.Errorf("%q: %s, want %s", tt.selector, got, tt.want)
		}
	}
}

// FuzzMatchCalico negates what it can read: that must turn the verdict. And it compares random expressions with their own value.
func FuzzMatchCalico(f *testing.F) {
	f.Add(`app == "web" && !has(none)`, uint64(1))
	f.Add(`app in {"a"`, uint64(2))
	set := labels.Set{"app": "web", "tier": "x"}
	f.Fuzz(func(t *testing.T, text string, seed uint64) {
		v := matchCalico(text, set)
		if negated := matchCalico("!("+text+")", set); strings.TrimSpace(text) != "" && len(text) < maxSelector-3 && negated != not(v) {
			t.Errorf("%q is %s, and negated %s", text, v, negated)
		}
		r := rand.New(rand.NewPCG(seed, 3))
		if expression, want := randomSelector(r, set, 4); matchCalico(expression, set) != verdict(want) {
			t.Errorf("%q: want %t", expression, want)
		}
	})
}

// randomSelector returns an expression and its value.
func randomSelector(r *rand.Rand, set labels.Set, depth int) (string, bool) {
	key := []string{"app", "tier", "none"}[r.IntN(3)]
	literal := []string{"web", "x", ""}[r.IntN(3)]
	value, has := set[key]
	equal := has && value == literal
	if depth > 0 && r.IntN(2) == 0 {
		x, left := randomSelector(r, set, depth-1)
		y, right := randomSelector(r, set, depth-1)
		switch r.IntN(3) {
		case 0:
			return "(" + x + ") && (" + y + ")", left && right
		case 1:
			return "(" + x + ")||(" + y + ")", left || right
		default:
			return "! (" + x + ")", !left
		}
	}
	switch r.IntN(5) {
	case 0:
		return "has(" + key + ")", has
	case 1:
		return key + `=="` + literal + `"`, equal
	case 2:
		return key + " != '" + literal + "'", !equal
	case 3:
		return key + ` in {"other", "` + literal + `"}`, equal
	default:
		return key + ` not in { "` + literal + `" }`, !equal
	}
}
