// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"fmt"
	"regexp"
	"strings"
)

// unfilledHint is what to do with text that is still to be filled in.
const unfilledHint = "fill it in first, or convert what the cluster has: kubectl get configmap -o yaml"

// unfilled finds the first line that is for a tool to fill in, such as Helm or Ansible, and is no line of a Corefile.
func unfilled(text string) (line int, found bool) {
	at := regexp.MustCompile(`(?m)^[^"#\n]*\{(?:%|\{-?\s*(?:if|else|end|range|with|include|template|toYaml|tpl|define|default)\b).*$`).FindStringIndex(text)
	if at == nil {
		return 0, false
	}
	return 1 + strings.Count(text[:at[0]], "\n"), true
}

// unfilledError says that a file is the template of one, first being the line of the file that the text begins at.
func unfilledError(text string, first int) error {
	line, found := unfilled(text)
	if !found {
		return nil
	}
	return fmt.Errorf("line %d has {{ … }} or {%% … %%}, which a tool is to fill in: render the template first (helm template, ansible), or convert what the cluster has: kubectl get configmap -o yaml", first+line-1)
}

// placeholders is an expression for words of a Corefile that stand for a value.
func placeholders() *regexp.Regexp {
	return regexp.MustCompile(`__[A-Z][A-Z0-9_]*__|^\$\{?[A-Za-z_][A-Za-z0-9_]*\}?$|^<[A-Za-z][^<>]*>$|^\{\{.*|^(?:CLUSTER_DOMAIN|REVERSE_CIDRS|UPSTREAMNAMESERVER)$`)
}

// placeholder finds in a word what one of the placeholders fits, those of NodeLocal DNSCache aside.
func placeholder(forms *regexp.Regexp, word string) string {
	for _, known := range []string{clusterIP, centralServers, upstreams, "__PILLAR__LOCAL__DNS__", "__PILLAR__DNS__DOMAIN__"} {
		word = strings.ReplaceAll(word, known, "")
	}
	return forms.FindString(word)
}
