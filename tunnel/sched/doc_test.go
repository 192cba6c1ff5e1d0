package sched

import (
	"fmt"
	"os"
	"regexp"
	"testing"
)

// TestDocConstants compares the values in the package documentation with the constants.
func TestDocConstants(t *testing.T) {
	constants := map[string]any{
		"forgetAfter": forgetAfter, "deathThreshold": deathThreshold, "ackOverdueAfter": ackOverdueAfter,
		"firstPatience": firstPatience, "patienceHalfLife": patienceHalfLife, "minExtraPatience": minExtraPatience,
		"maxExtraPatience": maxExtraPatience, "steadyTime": steadyTime, "lossSettleTime": lossSettleTime,
		"paddingTime": paddingTime, "drainEvery": drainEvery, "maxPause": maxPause, "minimumAge": minimumAge,
		"peakAge": peakAge, "minWindow": minWindow, "settleTime": settleTime, "targetQueue": targetQueue,
		"busyQueue": busyQueue, "longQueue": longQueue, "runTime": runTime, "minRunTime": minRunTime,
		"backlogTime": backlogTime, "lateCredit": lateCredit, "startRate": startRate, "minRate": minRate,
		"maxPaddingRate": maxPaddingRate, "startGrowth": startGrowth, "spendGrowth": spendGrowth, "policedSpendGrowth": policedSpendGrowth, "spendPatience": spendPatience, "gentleGrowth": gentleGrowth, "maxGrowth": maxGrowth,
		"maxWindow": maxWindow, "maxSavingsTime": maxSavingsTime, "maxPolicedSavingsTime": maxPolicedSavingsTime, "lossHold": lossHold, "maxTarget": maxTarget, "anchorHorizon": anchorHorizon, "minAnchorGain": minAnchorGain, "minAnchorShare": minAnchorShare, "maxEarly": maxEarly, "earlyShare": earlyShare,
		"maxSavings": maxSavings, "excessLoss": excessLoss, "compareLost": compareLost, "lossHoldRounds": lossHoldRounds, "fullShare": fullShare, "backOff": backOff, "burstLoss": burstLoss,
		"minExcessLoss": minExcessLoss, "worthFactor": worthFactor, "lossSamplePackets": lossSamplePackets,
		"lossMemoryPackets": lossMemoryPackets, "trustPackets": trustPackets, "maxQuickReturns": maxQuickReturns,
		"proofsNeeded": proofsNeeded, "returnProbes": returnProbes, "maxDrainRetries": maxDrainRetries,
		"sameDelayMicros": sameDelayMicros, "resendCost": resendCost, "minRunBytes": minRunBytes,
		"maxStrayBytes": maxStrayBytes, "reportShare": reportShare, "copyShare": copyShare, "breakerInterval": breakerInterval, "outageTime": outageTime, "heavyLoss": heavyLoss,
		"tripIntervals": tripIntervals, "breakerDelays": breakerDelays, "breakerPackets": breakerPackets, "closePackets": closePackets, "recoverGrowth": recoverGrowth, "reportPeriod": reportPeriod, "MaxReportInterval": MaxReportInterval,
		"MaxPaddingBytes": float64(MaxPaddingBytes),
		"markRecovery":    markRecovery, "minHold": minHold, "maxHold": maxHold, "heldShare": heldShare, "holdRounds": holdRounds,
		"carefulGrowth": carefulGrowth, "markGain": markGain, "minMarkGain": minMarkGain, "patientResponses": patientResponses,
		"minMarkedRate":   minMarkedRate,
		"jointDrainEvery": jointDrainEvery, "minTestEvery": minTestEvery, "maxTestEvery": maxTestEvery, "freeTime": freeTime,
		"bestRateAge": bestRateAge, "levelTime": levelTime, "apartTime": apartTime, "noiseSpread": noiseSpread, "jointMargin": jointMargin,
		"queueRounds": queueRounds, "followerShare": followerShare, "maxEmptyTests": maxEmptyTests, "maxSameTests": maxSameTests,
		"maxDrift": maxDrift, "cubicC": cubicC, "cubicBeta": cubicBeta,
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile(`(?m)^//\t([a-zA-Z]\w+) +([0-9]\S*)`).FindAllStringSubmatch(string(doc), -1)
	if len(rows) != len(constants) {
		t.Errorf("doc.go has %d constants, want %d", len(rows), len(constants))
	}
	for _, row := range rows {
		if got := fmt.Sprint(constants[row[1]]); got != row[2] {
			t.Errorf("%s is %s, doc.go says %s", row[1], got, row[2])
		}
	}
}
