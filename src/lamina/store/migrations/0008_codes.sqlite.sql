-- How a turn ended is a code. Any other text of an older lamina stays, and is shown as it is.

UPDATE turn SET error = 'turn.cancelled' WHERE error = 'cancelled';
UPDATE turn SET error = 'turn.lost' WHERE error IN (
  'the process that answered ended before the answer was whole', 'ended by recovery: nobody answered it any more'
);
