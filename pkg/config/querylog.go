// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"
)

// QueryLogMode says which queries are logged.
type QueryLogMode uint8

// The modes of the query log.
const (
	QueriesOff    QueryLogMode = iota // none
	QueriesErrors                     // those that failed
	QueriesSlow                       // those that took long
	QueriesSample                     // one in QueryLog.Sample
	QueriesAll                        // every one
)

// maxSample bounds the sample: beyond it a busy node logs less than a line an hour.
const maxSample = 1_000_000_000

// QueryLog says which queries are logged. The zero value: none.
type QueryLog struct {
	Mode   QueryLogMode
	Sample int // in mode QueriesSample one query in so many is logged, 1..1000000000; else 0
}

// String returns the spelling of q in a configuration.
func (q QueryLog) String() string {
	switch q.Mode {
	case QueriesOff:
		return "off"
	case QueriesErrors:
		return "errors"
	case QueriesSlow:
		return "slow"
	case QueriesSample:
		return fmt.Sprintf("sample=%d", q.Sample)
	case QueriesAll:
		return "all"
	}
	return fmt.Sprintf("mode %d", q.Mode)
}

// queryLog reads a query log.
func queryLog(dst *QueryLog) func(node) {
	return func(n node) {
		text, _ := n.str()
		if string(n.text) == "false" {
			text = "off" // which YAML 1.1 reads as a boolean
		}
		q, f := parseQueryLog(text)
		if n.rejectFlaw(f) {
			*dst = q
		}
	}
}

func parseQueryLog(text string) (QueryLog, flaw) {
	for _, mode := range []QueryLogMode{QueriesOff, QueriesErrors, QueriesSlow, QueriesAll} {
		if q := (QueryLog{Mode: mode}); q.String() == text {
			return q, flaw{}
		}
	}
	number, found := strings.CutPrefix(text, "sample=")
	if !found {
		words := []string{"off", "errors", "slow", "sample=N", "all"}
		return QueryLog{}, flaw{what: "not " + orList(words), hint: didYouMean(text, words)}
	}
	sample, err := strconv.Atoi(number)
	if err != nil || sample < 1 || sample > maxSample || !isDigits(number) {
		return QueryLog{}, flaw{
			what: fmt.Sprintf("not a sample between 1 and %d", maxSample),
			hint: "sample=100 logs one query in a hundred",
		}
	}
	return QueryLog{Mode: QueriesSample, Sample: sample}, flaw{}
}
