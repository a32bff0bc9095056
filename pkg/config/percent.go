// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// percent reads a percentage as a part of one, to a hundredth of a percent: so
// few digits come back from the float64 as they went in.
func percent(dst *float64, least, most int) func(node) {
	return func(n node) {
		text, isString := n.str()
		digits, marked := strings.CutSuffix(text, "%")
		whole, fraction, _ := strings.Cut(digits, ".")
		hundredths, err := strconv.Atoi(whole + (fraction + "00")[:2])
		switch {
		case !isString && n.isScalar():
			n.reject("not a percentage", "write it like 10%")
		case !marked, err != nil, len(fraction) > 2, !isDigits(whole + fraction):
			n.reject("not a percentage", "write it like 10%, with at most two decimals")
		case hundredths < least*100 || hundredths > most*100:
			n.reject(fmt.Sprintf("not between %d%% and %d%%", least, most), "")
		default:
			*dst = float64(hundredths) / 10000
		}
	}
}

// formatPercent is the inverse of percent.
func formatPercent(part float64) string {
	return strconv.FormatFloat(math.Round(part*10000)/100, 'f', -1, 64) + "%"
}
