// Package e2e runs the whole product as a shop would: a private Redis and Postgres, the three programs as real
// processes, callers over HTTP, and faults in between. Each row of its table is a promise. It makes sure that its own
// fault happened, and ends with the audit by `reconciler --once --json`.
//
// The rows run in two sizes: a small one with every run of the tests, and by `make test-e2e` the sizes of the
// promises, as a table of row, verdict, time and figures.
//
// # Field cases
//
// What went wrong in systems like this one, and where it is played. Names without a package are rows of this suite.
//
//	A1   lost reply, script run again           TestOrders; redisstock TestLostReplyTakesStockOnce; faults: replies of every call
//	A4   scripts or functions lost              faults TestRedisFaults, TestReadinessRunsTheLibrary
//	A5   deadlines do not stop a command        TestOrders; the end of a blocked read: consumerapp TestAWaitingReadEndsSoonAfterTheSignal
//	A7   nothing to read is no error            bus/streambus TestThreeReadersOfFewEntriesSeeNoErrorAndNoWaitBeyondTheBlock
//	A9   READONLY, LOADING, kept connections    faults TestRedisFaults
//	B2   acknowledged entries stay              TestMemoryOfRedisIsFlatWhileOrdersComeAndEnd; consumerapp TestMemoryOfTheLogStaysFlatOverManyEntries; audit TestAuditsWhileTheLogIsTrimmedRaiseNoFalseAlarm
//	B3   no group after a loss                  faults TestRedisFaults; consumerapp TestALogThatIsDeletedUnderItsReadersIsReportedCalmlyAndTakenUpAgain
//	B5   a slow consumer's entries are taken    TestASlowPostgresAppliesEachOrderOnce; consumer/internal/apply TestTwoOwnersAtOnceApplyEachOrderOnce
//	B7   a script that fails half-way           TestAScriptThatCannotFinishWritesNothing; redisstock TestFullRedisRefusesToTakeAndStillSettles
//	B10  numbers beyond 2^53                    redisstock grammar tests, event TestHugeNumbersPass, server hostile tests
//	B12  expiry while nobody listens            TestHoldsEndOnceAfterAllWorkersWereDead; reconcilerapp TestHoldsEndOnceWhateverTheNumberOfReconcilers
//	C1   lock outlived by its holder            not yet: no strategy locks
//	C4   lock wait, ttl and context             not yet: no strategy locks
//	D1, D4, D5, D7, D9  Kafka                   not yet: the only bus is the stream; a huge order beside others: TestAnOrderOf1500LinesLivesAsAnyOther; two SKUs in one order: ledger TestCartsInRandomOrderNeverDeadlock
//	E2   deadlocks between batches              ledger TestCartsInRandomOrderNeverDeadlock, TestADeadlockOrSerializationFailureIsRetriedAndAppliedOnce
//	E3   one key twice in an upsert             ledger TestTheSameKeyTwiceInABatchIsASum
//	E5   batch errors seen late                 ledger TestARefusalByPostgresIsIsolatedToItsEntry, TestAGapStopsApplyAndThePrefixStands
//	E7   statements across a migration          TestAColumnIsAddedToEveryTableUnderLoad; behind pgbouncer: access TestAShopBehindAPooler
//	E9   int4 runs out                          migrations TestEveryNumberIsABigint
//	F1   replicas migrate at once               TestManyProcessesMigrateAtOnce; migrations TestAMigrationThatIsKilledIsFinishedByAnother
//	G1   second cancel                          TestOrders; after the confirm: TestASoldOrderIsCancelledOnce; after the record was dropped: TestRepeatsAnswerAsBeforeWhenTheRecordIsGone
//	G3   reserved below zero                    reconcilerapp TestTamperedSKUsAreFrozenAndNamedOnce, redisstock TestTheLogFoldsToWhatRedisHolds
//	G4   two buyers, last unit                  TestOrders, for the one strategy that exists
//	G6   quantities that are none               TestOrders; server TestHostileReservationsAreRefusedByFieldAndWriteNothing
//	G10  completed twice                        TestOrders
//	G12  product removed                        TestADeletedSKULeavesNothingToItsText
//	G15  state machine                          TestASoldOrderIsCancelledOnce; order TestEveryOperationOnEveryState, TestEveryOperationOnEveryStateOfADroppedRecord, protocol TestTheTablesHoldOnRedisAndPostgres
//	G16  time zones, clocks                     TestHoldsDoNotDependOnTimeZones; faults clock rows
//	G18  blocked by the own hold                TestOrders; a changed cart: TestWhatAShopDoesWithACart
//	H1   repeat click                           TestOrders
//	H3   crash between stock and event          TestAKilledProducerLeavesNoHalfOrder; faults: a producer killed at each step
//	H6   repair of what is in flight            TestWhatIsInFlightIsNotRepairedAndWhatIsPlantedIsNamedOnce
//	H9   leases lost with the process           not yet: no leases
//	H10  sold-out marker sticks                 there is no marker; selling again after a restock: producerapp, order
//
// Beside the field cases stand what shops need of orders:
//
//	carts, parts, late money                    TestWhatAShopDoesWithACart, TestALateConfirmTakesAgainOrSaysWhatIsMissing
//	orders of 1,500 lines                       TestAnOrderOf1500LinesLivesAsAnyOther
//	limits per buyer                            TestABuyerGetsTheLimitAndNoMore, TestALimitIsCountedBeforeItIsSoldUnder
//	settings of a SKU                           TestSettingsOfASKUAreSeenByEveryProducer
//	stocktakes                                  TestACountIsPostedAfterTheShopSoldOn
//	retention, forgetting, pruning              TestMemoryOfRedisIsFlatWhileOrdersComeAndEnd, TestRepeatsAnswerAsBeforeWhenTheRecordIsGone
package e2e
